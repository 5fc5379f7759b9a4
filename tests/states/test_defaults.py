"""What a field means that is left out, as it was last looked at.

Rows and the digests of the log leave out what has its default. So a default that changes would change the meaning of
every row that was ever written, and no digest would tell. After a change that is meant, read the difference that
`APPROVE=1 make test TESTS=tests/states/test_defaults.py` makes to `defaults.json`, and commit it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

import turnwise.engine.engine  # noqa: F401 - all values are known then
from turnwise.states.values import Value

APPROVED = Path(__file__).parent / "defaults.json"


def kinds(of: type[Value] = Value) -> Iterator[type[Value]]:
    """Yield the kinds of values of the library."""
    for kind in of.__subclasses__():
        if kind.__module__.startswith("turnwise."):
            yield kind
        yield from kinds(kind)


def spelled(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"{field.default_factory.__name__}()"
    return "needed" if field.required else repr(field.default)


def test_field_defaults_are_as_approved() -> None:
    found = {
        f"{kind.__module__.removeprefix('turnwise.')}.{kind.__qualname__}": {
            field.name: spelled(field) for field in msgspec.structs.fields(kind)
        }
        for kind in sorted(kinds(), key=lambda kind: (kind.__module__, kind.__qualname__))
    }
    if os.environ.get("APPROVE"):
        APPROVED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == json.loads(APPROVED.read_text(encoding="utf-8"))


def test_values_are_frozen() -> None:
    """They are shared: between the cache, the subscribers and the caller."""
    assert [kind for kind in kinds() if not kind.__struct_config__.frozen] == []
