"""The names that users type are there, under the names they were promised."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator
from enum import StrEnum
from types import ModuleType
from typing import Any

import pytest

import turnwise
from support.public_surface import FACE, MODULES, PROTOCOLS
from support.recorded import recorded
from turnwise import Engine, TurnwiseError
from turnwise.states import errors

PROMISED = {
    "turnwise": """
        Engine tool ToolContext ClientTool ToolResult Settings RetryPolicy CompactionPolicy RESTING ChatState
        Chat Page Message Event Usage SendReceipt SubmissionReceipt TurnResult Verdict Explanation Transcript
        fold verify_export
    """,
    "turnwise.states": "ChatState Trigger TABLE decide IllegalTransition",
    "turnwise.diagrams": "mermaid svg",
    "turnwise.providers.protocol": "Model ModelRequest ModelPart ModelReply",
    "turnwise.providers.scripted": "ScriptedModel Reply Call",
    "turnwise.providers.demo": "DemoModel",
    "turnwise.persistence.protocol": "ChatStore",
    "turnwise.testing": "ManualClock",
}
METHODS = """
    create_chat get_chat list_chats send_message ask submit_tool_results interrupt resume edit_message
    queued edit_queued delete_queued promote_queued request_compaction clear_context archive unarchive
    messages events wait audit export_audit verify fork explain erase_message
"""


@pytest.mark.parametrize(("module", "names"), PROMISED.items())
def test_a_module_offers_what_was_promised(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.parametrize("method", METHODS.split())
def test_the_engine_can_do_what_was_promised_and_says_what_it_does(method: str) -> None:
    assert inspect.getdoc(getattr(Engine, method))


def test_the_version_is_that_of_the_package() -> None:
    assert turnwise.__version__ == importlib.metadata.version("turnwise")


def test_every_error_is_offered_at_the_top() -> None:
    """Who catches an error should not have to know where it lives."""
    known = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, TurnwiseError)}
    assert known <= set(turnwise.__all__)


def test_what_is_offered_is_exported_in_order() -> None:
    exported = turnwise.__all__
    assert len(set(exported)) == len(exported)
    assert [name for name in exported if not hasattr(turnwise, name)] == []


# How all of it is called


FRAMEWORKS = frozenset({"fastapi", "starlette"})
"""A class of theirs that is extended takes what they take."""


def test_everything_public_is_called_as_it_was() -> None:
    """An argument or a default that changes, changes what users' code means. `RECORD=1` writes the list anew."""
    face = [line for module in MODULES for line in called(importlib.import_module(module))]
    assert face == recorded(FACE, face)


def called(module: ModuleType) -> Iterator[str]:
    """Yield a line for everything public in a module, with the defaults of its arguments."""
    own = [name for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__]
    for name in sorted(getattr(module, "__all__", None) or [one for one in own if not one.startswith("_")]):
        offered, known_as = getattr(module, name), f"{module.__name__}.{name}"
        if inspect.isclass(offered):
            yield f"{known_as}{': ' + ' '.join(offered) if issubclass(offered, StrEnum) else arguments(offered)}"
            yield from (f"{known_as}.{method}{arguments(found)}" for method, found in methods(offered))
        elif inspect.isfunction(offered):
            yield f"{known_as}{arguments(offered)}"
        elif isinstance(offered, int | float | str):
            yield f"{known_as} = {offered!r}"


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods of a class that are turnwise's own, but those that its protocol asks for."""
    asked = {name for base in kind.__mro__[1:] if base in PROTOCOLS for name in dir(base)}
    for name in sorted(set(dir(kind)) - set(dir(object)) - asked):
        found = getattr(kind, name)
        if not name.startswith(("_", "test_")) and (inspect.isfunction(found) or inspect.ismethod(found)):
            owner = next(one for one in kind.__mro__ if name in vars(one))
            if owner.__module__.startswith("turnwise"):
                yield name, found


def arguments(function: Any) -> str:
    """Return the arguments of a function or class with their defaults: `Ellipsis` for what is no plain value."""
    made_by = getattr(function, "__init__", None)
    if getattr(function, "_is_protocol", False) or made_by is Exception.__init__:
        return ""
    if inspect.isclass(function) and getattr(made_by, "__module__", "turnwise").split(".")[0] in FRAMEWORKS:
        return ""
    known = inspect.signature(function).parameters.values()
    return str(inspect.Signature([one.replace(annotation=one.empty, default=told(one.default)) for one in known]))


def told(default: Any) -> Any:
    plain = isinstance(default, bool | int | float | str | tuple | None) or default is inspect.Parameter.empty
    return default if plain else ...
