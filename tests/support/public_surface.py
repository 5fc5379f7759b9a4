"""The public surface, by introspection: everything a user may call, with arguments that are right for it.

A function or a parameter that is new has no right argument here, and the test says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from obstore.store import MemoryStore

import turnwise
from turnwise import diagrams, states
from turnwise.providers import scripted
from turnwise.states.events import StatusEvent
from turnwise.states.facts import Facts, Profile
from turnwise.states.names import ChatState
from turnwise.testing import ManualClock

GIVEN_BACK: Final = frozenset(
    [
        "AuditRecord",
        "CompactionInput",
        "Chat",
        "Compaction",
        "CompactionRun",
        "PastCall",
        "RequestContext",
        "UsageEntry",
        "ChatState",
        "Erasure",
        "ErrorInfo",
        "Event",
        "Explanation",
        "LoopState",
        "Message",
        "ModelCall",
        "ModelPart",
        "ModelReply",
        "ModelRequest",
        "Page",
        "QueuedMessage",
        "SendReceipt",
        "StopReason",
        "SubmissionReceipt",
        "Tombstone",
        "ToolCall",
        "ToolContext",
        "ToolRun",
        "ToolSpec",
        "Transcript",
        "Trigger",
        "TurnResult",
        "Usage",
        "Verdict",
    ]
)
"""What callers are handed and do not make themselves, or what a model makes, which is checked where it is heard."""
PROTOCOLS: Final = frozenset({"ChatStore", "FileStore", "Model", "Observer"})
"""What callers write themselves. Handing in what is none is a case of `Engine`."""
NO_FUNCTIONS: Final = frozenset({"RESTING", "TABLE", "history_was_compacted"})
"""`history_was_compacted` is for the engine to call."""


@dataclass(frozen=True, slots=True)
class Target:
    """A public function, and a right argument for each of its parameters."""

    name: str
    function: Callable[..., Any]
    right: Mapping[str, Any]
    positional: tuple[str, ...] = ()

    def _repr_pretty_(self, printer: Any, _: bool) -> None:  # noqa: FBT001 - as hypothesis asks for it
        printer.text(self.name)


async def search(query: str) -> str:
    """Search."""
    return query


OBJECT: Final = {"type": "object"}
KEY: Final = turnwise.SigningKey.generate()
RIGHT: Final[Mapping[str, Mapping[str, Any]]] = {
    "Engine": {
        "store": "sqlite://",
        "files": turnwise.FolderFiles("files"),
        "model": scripted.ScriptedModel("ok"),
        "tools": [search],
        "agents": [turnwise.Agent("support", "demo")],
        "deps": 7,
        "settings": turnwise.Settings(run_worker=False),
        "reminders": [turnwise.history_was_compacted],
        "prepare_messages": lambda messages: messages,
        "observers": [turnwise.Observer()],
        "checkpoints": turnwise.Checkpoints(KEY, "checkpoints.jsonl"),
        "clock": ManualClock(),
    },
    "Agent": {
        "name": "support",
        "model": "demo",
        "system": "Be brief.",
        "tools": [search],
        "output": OBJECT,
        "output_mode": "tool",
        "settings": turnwise.Settings(),
        "version": "1",
        "reminders": [turnwise.history_was_compacted],
        "prepare_messages": lambda messages: messages,
    },
    "delegate": {"agent": "support", "name": "ask_support", "description": "Helps.", "on_interrupt": "leave"},
    "tool": {
        "function": search,
        "name": "search",
        "description": "Searches.",
        "schema": OBJECT,
        "parallel_safe": True,
        "timeout": 3,
        "crash": "at_least_once",
        "stop_after": False,
        "policy": "ask",
        "reconcile": search,
        "definition": None,
    },
    "ProviderDefinition": {"provider": "scripted", "tool": {"type": "t", "name": "search"}, "betas": ["b"]},
    "Tool": {"name": "search", "description": "Searches.", "schema": OBJECT, "run": search},
    "ClientTool": {"name": "ask", "description": "Asks.", "input_schema": OBJECT, "deadline": 3},
    "ToolResult": {"call_id": "call_1", "output": {"a": [1]}, "is_error": False},
    "ToolOutput": {"output": 1, "attachments": ()},
    "CompactionResult": {"messages": [], "usage": None},
    "verify_export": {"text": "{}", "key": b"k", "public_key": KEY.public_pem, "checkpoints": ""},
    "SigningKey": {"pem": KEY.private_pem},
    "Checkpoints": {
        "key": KEY,
        "to": "checkpoints.jsonl",
        "every": 10,
        "headers": {"A": "b"},
        "timeout": 3,
        "catch_up": 5,
    },
    "fold": {"events": [], "transcript": None},
    "mermaid": {"state": "waiting", "simple": True},
    "path": {"events": [StatusEvent(state=ChatState.waiting, at=ManualClock().now())]},
    "timeline": {"events": [StatusEvent(state=ChatState.waiting, at=ManualClock().now())]},
    "slide": {"state": "waiting"},
    "sticker": {"state": "waiting"},
    "table": {},
    "machine_json": {},
    "svg": {"state": "waiting", "rows": False},
    "ScriptedModel": {"replies": ["ok"], "summary": "s", "context_limit": 9, "name": "n", "provider": "p"},
    "Reply": {"text": "hi", "reasoning": "hm", "calls": [], "usage": (1, 2), "chunks": 2, "delay": 0, "stall_after": 3},
    "Call": {"name": "search", "arguments": {}, "id": "call_1"},
    "TextPart": {"text": "hi"},
    "FilePart": {"media_type": "image/png", "data": "aGk=", "name": "cat.png"},
    "FolderFiles": {"path": "files", "create": True},
    "BucketFiles": {"store": MemoryStore(), "prefix": "files/chats"},
    "from_bytes": {"data": b"hi", "media_type": "image/png", "name": "cat.png"},
    "from_path": {"path": __file__, "media_type": "text/plain", "name": "public_surface.py"},
    "decide": {"facts": Facts(chat_id="c", profile=Profile(created_at=ManualClock().now())), "trigger": "create"},
    "Settings": {},
    "RetryPolicy": {},
    "CompactionPolicy": {},
}


def makers() -> list[Target]:
    """Return what is called without an engine."""
    modules = (turnwise, diagrams, states)
    found = {name: getattr(module, name) for module in modules for name in module.__all__}
    found |= {name: getattr(scripted, name) for name in ("ScriptedModel", "Reply", "Call")}
    found |= {"from_bytes": turnwise.FilePart.from_bytes, "from_path": turnwise.FilePart.from_path}
    errors = {name for name, one in found.items() if isinstance(one, type) and issubclass(one, BaseException)}
    names = sorted(found.keys() - errors - GIVEN_BACK - PROTOCOLS - NO_FUNCTIONS)
    new = set(names) ^ set(RIGHT)
    assert not new, f"say in RIGHT what is right for {new}, or in GIVEN_BACK that no caller makes one"
    return [_target(name, found[name], RIGHT[name]) for name in names]


def methods(right: Mapping[str, Any]) -> list[Target]:
    """Return the methods of `Engine`; `right` holds arguments by `method.parameter`, or by parameter."""
    targets = []
    for name, (member, taken) in _taken_by_methods().items():
        lacking = [f"{name}.{one}" for one in taken if f"{name}.{one}" not in right and one not in right]
        assert lacking == [], f"say in right_arguments what is right for {lacking}"
        given = {one: right[f"{name}.{one}" if f"{name}.{one}" in right else one] for one in taken}
        targets.append(Target(name, member, given))
    return targets


@cache
def _taken_by_methods() -> dict[str, tuple[Any, list[str]]]:
    """Return the public methods of `Engine` by name, each with the parameters that it takes."""
    return {
        name: (member, [one for one in inspect.signature(member).parameters if one != "self"])
        for name, member in vars(turnwise.Engine).items()
        if not name.startswith("_") and inspect.isfunction(member) and name != "release_followers"
    }


def _target(name: str, function: Any, right: Mapping[str, Any]) -> Target:
    parameters = inspect.signature(function).parameters.values()
    unknown = right.keys() - {one.name for one in parameters}
    assert not unknown, f"{name} has no {unknown}"
    every = {one.name: one.default for one in parameters if one.kind is not one.VAR_KEYWORD} | dict(right)
    every = {one: value for one, value in every.items() if one in right or _known(value)}
    return Target(name, function, every, tuple(one.name for one in parameters if one.kind is one.POSITIONAL_ONLY))


def _known(default: Any) -> bool:
    return default is not inspect.Parameter.empty and type(default).__name__ != "_HAS_DEFAULT_FACTORY_CLASS"
