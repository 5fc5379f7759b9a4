"""Events as clients meet them: what each must say, and what is so where it says nothing."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import fields

from turnwise.states.events import ErrorInfo, Event, PartDelta

LEFT_OUT: dict[str, dict[str, Any]] = {
    "status": {"previous": None},
    "message": {},
    "part": {},
    "tool_result": {},
    "tool_progress": {},
    "queue": {},
    "action_required": {},
    "retry": {},
    "attempt_discarded": {},
    "compaction": {
        "percent": None,
        "context_tokens": None,
        "context_limit": None,
        "estimated": False,
        "folded": None,
        "carried": None,
        "error": None,
    },
    "history_reset": {},
    "turn_finished": {"provider_reason": None},
    "error": {},
}
"""By kind: what an event of older stores and of other writers may leave out, and what it then means."""
KINDS = {kind.kind: kind for kind in get_args(get_args(Event)[0])}


def optional(model: Any) -> dict[str, Any]:
    return {field.name: field.default for field in fields(model) if not field.required}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_an_event_may_leave_out(kind: str) -> None:
    common = {"seq": 0, "chat_id": "", "at": None}
    assert optional(KINDS[kind]) == {**common, **LEFT_OUT[kind]}


def test_every_kind_is_told_of_here() -> None:
    assert sorted(KINDS) == sorted(LEFT_OUT)


def test_what_an_error_and_a_piece_may_leave_out() -> None:
    assert optional(ErrorInfo) == {"step": None, "attempt": None, "retryable": False, "status": None}
    pieces = ("delta", "signature", "call_id", "name", "executor", "complete")
    assert optional(PartDelta) == dict.fromkeys(pieces)


@pytest.mark.parametrize("model", [*KINDS.values(), ErrorInfo, PartDelta])
def test_nobody_changes_what_was_told(model: Any) -> None:
    assert model.__struct_config__.frozen
