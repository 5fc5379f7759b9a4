"""The public surface: everything a user may call, and what of it is not fuzzed.

What there is to call is read off `tests/public_face.txt`. Each name of it is fuzzed, or stands in `NOT_FUZZED` with the
reason. A function or a parameter that is new has neither, nor a right argument in `right_arguments`: the tests say so.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

import turnwise
from support.right_arguments import OWNERS, RIGHT
from turnwise.providers.protocol import TakesDefinitions

FACE: Final = Path(__file__).parents[1] / "public_face.txt"
MODULES: Final = (
    "turnwise",
    "turnwise.client",
    "turnwise.diagrams",
    "turnwise.engine.mcp",
    "turnwise.engine.observers.opentelemetry",
    "turnwise.engine.observers.prometheus",
    "turnwise.persistence.conformance",
    "turnwise.persistence.postgres.store",
    "turnwise.persistence.protocol",
    "turnwise.persistence.sqlite.store",
    "turnwise.providers.demo",
    "turnwise.providers.protocol",
    "turnwise.providers.pydantic_ai",
    "turnwise.providers.scripted",
    "turnwise.service",
    "turnwise.states",
    "turnwise.testing",
)
"""The modules whose names are public."""
PROTOCOLS: Final = (
    turnwise.ChatStore,
    turnwise.FileStore,
    turnwise.Model,
    turnwise.Observer,
    TakesDefinitions,
)
"""What users write themselves, or extend, for the engine to call. Handing in what is none is a case of `Engine`."""
SAID: Final = frozenset({"ModelError", "ModelPart", "ModelReply"})
"""What only a model makes. It is a record, which is checked where the engine hears it: a model says odd ones."""
NOT_FUZZED: Final[Mapping[str, str]] = {
    "a result, which turnwise hands out and no function takes": """
        AuditRecord Chat Compaction CompactionRun Erasure Explanation ModelCall Page Problem QueuedMessage SendReceipt
        SubmissionReceipt Tombstone ToolRun TurnResult UsageEntry Verdict
    """,
    "a record that turnwise makes for code of the user's, or reads back from itself; its class checks nothing": """
        CompactionInput LoopState ModelRequest PastCall RequestContext ToolCall ToolContext ToolSpec Transcript
    """,
    "what the machine makes of a record of its own: pure, and nobody else calls it": """
        ToolCall.asked_at ToolCall.blanked ToolCall.granted ToolCall.is_due ToolCall.with_status
        Usage.as_compaction Usage.marked_partial
    """,
    "what pydantic's models have: their arguments are pydantic's, and so are their errors": """
        Value.model_copy Value.model_dump Value.model_dump_json
    """,
    "a store's answer to the engine, to which `StoreConformance` holds whoever writes a store": """
        Committed DuplicateReceipt Expiry Overdue Pruned Snapshot Waiting
    """,
    "a hook, or the helper of those who write models, which is called with what the engine has checked": """
        history_was_compacted refusal_of
    """,
    "what the engine asks of a model, with a request that it has made": """
        DemoModel.generate DemoModel.stream PydanticAIModel.generate PydanticAIModel.refuses
        PydanticAIModel.refuses_file PydanticAIModel.stream
        ScriptedModel.generate ScriptedModel.refuses ScriptedModel.stream StrictModel.stream
    """,
    "what a store asks of itself": "SQLiteStore.prepare",
    "a class of FastAPI's, which makes it": "ProblemRoute ProblemRoute.get_route_handler",
    "a suite or a simulation, which runs inside a test of the user's and keeps nobody's chats": """
        FilesConformance FilesConformance.files_beside Outside Outside.ask Outside.start StoreConformance
        World World.run
    """,
    "what the engine asks of settings that were checked, about the window of a model": """
        CompactionPolicy.strictest Settings.limits
    """,
    "takes nothing, and has nothing to refuse": "ManualClock.monotonic ManualClock.now",
}
"""Why what is public is not fuzzed, and what it is. Errors, enumerations and `PROTOCOLS` need no line."""


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """A public function, and a right argument for each of its parameters."""

    name: str
    function: Callable[..., Any]
    right: Mapping[str, Any]
    positional: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.name


@cache
def public_names() -> Mapping[str, Any]:
    """Return everything public that can be called, by its qualified name: functions, classes, their methods."""
    lines = FACE.read_text(encoding="utf-8").splitlines()
    found = [_found(re.split(r"[(: ]", line)[0]) for line in lines]
    return {one.__qualname__: one for one in found if callable(one)}


def _found(dotted: str) -> Any:
    module = max((one for one in MODULES if dotted.startswith(f"{one}.")), key=len)
    one: Any = importlib.import_module(module)
    for name in dotted.removeprefix(f"{module}.").split("."):
        one = getattr(one, name)
    return one


def not_fuzzed() -> set[str]:
    """Return the names that have a reason not to be fuzzed."""
    listed = {name for names in NOT_FUZZED.values() for name in names.split()}
    return listed | {name for name, one in public_names().items() if _is_only_raised(one) or _is_written_by_users(one)}


def _is_only_raised(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, BaseException | Enum) and one.__name__ not in SAID


def _is_written_by_users(one: Any) -> bool:
    """Whether it is a protocol, or what a protocol asks of whoever keeps it."""
    owner, _, method = one.__qualname__.rpartition(".")
    if not owner:
        return one in PROTOCOLS
    kind = getattr(importlib.import_module(one.__module__), owner)
    return any((known in kind.__mro__ or kind in known.__mro__) and hasattr(known, method) for known in PROTOCOLS)


def makers() -> list[Target]:
    """Return what is called without an open engine."""
    return [_target(name, public_names()[name], right) for name, right in RIGHT.items()]


def methods(kind: type, right: Mapping[str, Any]) -> list[Target]:
    """Return the methods of `Engine` or `Client`; `right` holds arguments by `method.parameter`, or by parameter."""
    targets = []
    for name, (member, taken) in _taken_by_methods(kind).items():
        lacking = [f"{name}.{one}" for one in taken if f"{name}.{one}" not in right and one not in right]
        assert lacking == [], f"say in right_arguments what is right for {lacking}"
        given = {one: right[f"{name}.{one}" if f"{name}.{one}" in right else one] for one in taken}
        targets.append(Target(name, member, given))
    return targets


@cache
def _taken_by_methods(kind: type) -> dict[str, tuple[Any, list[str]]]:
    """Return the public methods by name, each with the parameters that it takes."""
    return {
        name.removeprefix(f"{kind.__name__}."): (one, list(inspect.signature(one).parameters)[1:])
        for name, one in public_names().items()
        if name.startswith(f"{kind.__name__}.")
    }


def _target(name: str, function: Any, right: Mapping[str, Any]) -> Target:
    """Return the function with right arguments: those that are given, and its own defaults for the others."""
    owner, _, method = name.rpartition(".")
    kept = OWNERS.get(name, OWNERS.get(owner)) if owner else None
    function = function if kept is None else getattr(kept, method)
    parameters = inspect.signature(function).parameters.values()
    fixed = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    unknown = right.keys() - {one.name for one in fixed} if len(fixed) == len(parameters) else ()
    assert not unknown, f"{name} has no {unknown}"
    every = {one.name: one.default for one in fixed} | dict(right)
    lacking = [one for one, value in every.items() if value is inspect.Parameter.empty or _is_made(value)]
    assert not lacking, f"say in RIGHT what is right for {lacking} of {name}"
    return Target(name, function, every, tuple(one.name for one in fixed if one.kind is one.POSITIONAL_ONLY))


def _is_made(default: Any) -> bool:
    return type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
