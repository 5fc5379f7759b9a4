"""The complete decision of every row: changed facts, writes and events of every case.

Other tests state the rules and their reasons; this one shows every change. After an intended change, read the
difference that `APPROVE=1 make test TESTS=tests/states/test_decisions.py` makes to `decisions.jsonl`, and commit it.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict
from pydantic_core import to_jsonable_python
from tests.states.table_cases import cases, name_of

import turnwise.engine.engine  # noqa: F401 - all values are known then
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts
from turnwise.states.values.values import Value

APPROVED = Path(__file__).parent / "decisions.jsonl"


def plain(value: Any) -> Any:
    """Return a value as JSON with the names of its types, so that no difference is hidden."""
    if isinstance(value, Value):
        fields = {name: plain(field) for name, field in asdict(value).items()}
        return {"": type(value).__name__, **fields, **_tag(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"": type(value).__name__, **{name: plain(field) for name, field in fields.items()}}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return to_jsonable_python(value, fallback=repr)


def _tag(value: Value) -> dict[str, Any]:
    tag = type(value).__struct_config__
    return {} if tag.tag_field is None else {tag.tag_field: tag.tag}


def spelled(before: Facts, decision: Decision) -> dict[str, Any]:
    """Return a decision as JSON; of its facts, the changed ones."""
    old, new = plain(before), plain(decision.facts)
    spelled_out = {name: plain(field) for name, field in asdict(decision).items()}
    spelled_out["trigger"] = decision.trigger.name
    spelled_out["facts"] = {name: value for name, value in new.items() if old[name] != value}
    spelled_out["writes"] = [
        {**plain(write), "kind": write.kind, "id": write.id, "digest": write.digest} for write in decision.writes
    ]
    return spelled_out


def decided() -> dict[str, str]:
    """Return the decision of every case, one line each. Some time passes before the trigger."""
    lines: dict[str, str] = {}
    for number, case in enumerate(cases()):
        life = case.build()
        life.wait(7)
        before = life.facts
        case.fire(life)
        name = f"{number:03} {name_of(case)}"
        lines[name] = json.dumps({"case": name, **spelled(before, life.decisions[-1])}, sort_keys=True)
    return lines


def approved() -> dict[str, str]:
    return {json.loads(line)["case"]: line for line in APPROVED.read_text(encoding="utf-8").splitlines()}


def test_every_row_decides_as_approved() -> None:
    found = decided()
    if os.environ.get("APPROVE"):
        APPROVED.write_text("".join(f"{line}\n" for line in found.values()), encoding="utf-8")
    known = approved()
    assert list(found) == list(known), "rows have come or gone; see the top of this file"
    changed = [f"was {known[name]}\nis  {line}" for name, line in found.items() if known[name] != line]
    assert not changed, f"{len(changed)} decisions differ from those approved (see the top of this file):\n{changed[0]}"


# What a field means that is left out: a default that changes would change every row that was ever written


DEFAULTS = Path(__file__).parent / "defaults.json"


def kinds(of: type[Value] = Value) -> Iterator[type[Value]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("turnwise.states."):
            yield kind
        yield from kinds(kind)


def spelled_default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"{field.default_factory.__name__}()"
    return "needed" if field.required else repr(field.default)


def test_field_defaults_are_as_approved() -> None:
    found = {
        f"{kind.__module__.removeprefix('turnwise.')}.{kind.__qualname__}": {
            field.name: spelled_default(field) for field in msgspec.structs.fields(kind)
        }
        for kind in sorted(kinds(), key=lambda kind: (kind.__module__, kind.__qualname__))
    }
    if os.environ.get("APPROVE"):
        DEFAULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == json.loads(DEFAULTS.read_text(encoding="utf-8"))


def test_values_are_frozen() -> None:
    """Cache, subscribers and callers share them."""
    assert [kind for kind in kinds() if not kind.__struct_config__.frozen] == []
