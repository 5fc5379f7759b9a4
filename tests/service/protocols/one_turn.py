"""Handwritten events of one turn, whose encoding tests compare word by word."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from turnwise import Event
from turnwise.states.calls import ToolCall
from turnwise.states.events import (
    ActionRequiredEvent,
    MessageEvent,
    PartDelta,
    PartEvent,
    StatusEvent,
    TurnFinishedEvent,
)
from turnwise.states.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Approval, ChatState, Executor, StopReason
from turnwise.states.usage import Usage

CHAT: Final = "c1"
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


def numbered(*events: Event, first: int = 1) -> list[Event]:
    return [replace(event, chat_id=CHAT, seq=number) for number, event in enumerate(events, first)]


def user(text: str = "Hi!", *, synthetic: bool = False, imported: bool = False, turn: int = 3) -> Event:
    parts = (TextPart(text=text),)
    message = Message(
        id="m1", role="user", parts=parts, turn=turn, step=0, created_at=NOW, synthetic=synthetic, imported=imported
    )
    return MessageEvent(message=message)


def reply(*parts: Part, step: int = 1, synthetic: bool = False, usage: Usage | None = None) -> Event:
    places: dict[str, Any] = {"turn": 3, "step": step, "created_at": NOW}
    message = Message(id=f"a{step}", role="assistant", parts=parts, synthetic=synthetic, usage=usage, **places)
    return MessageEvent(message=message)


def tool(result: ToolResultPart, *, step: int = 1) -> Event:
    return MessageEvent(
        message=Message(id=f"r-{result.call_id}", role="tool", parts=(result,), turn=3, step=step, created_at=NOW)
    )


def words(text: str, *, kind: Any = "text", index: int = 0, step: int = 1, attempt: int = 1) -> Event:
    return PartEvent(step=step, attempt=attempt, index=index, part=PartDelta(type=kind, delta=text))


def calling(  # noqa: PLR0913 - the fields of an event
    delta: str | None,
    *,
    call_id: str | None = "k",
    name: str | None = "look",
    index: int = 1,
    step: int = 1,
    attempt: int = 1,
    executor: Executor | None = None,
) -> Event:
    """Return a fragment of a call's arguments."""
    part = PartDelta(type="tool_call", call_id=call_id, name=name, delta=delta, executor=executor)
    return PartEvent(step=step, attempt=attempt, index=index, part=part)


def whole(type_: Any, *, index: int = 0, step: int = 1, attempt: int = 1, **complete: Any) -> Event:
    """Return a part that comes in one piece."""
    part = PartDelta(type=type_, complete={"type": type_, **complete})
    return PartEvent(step=step, attempt=attempt, index=index, part=part)


def state(name: ChatState) -> Event:
    return StatusEvent(state=name)


def finished(reason: StopReason = StopReason.end_turn, usage: Usage = Usage()) -> Event:  # noqa: B008 - is frozen
    """Return the event that ends the turn."""
    return TurnFinishedEvent(turn=3, stop_reason=reason, usage=usage)


def call(call_id: str = "k", *, executor: Executor = Executor.local, **arguments: Any) -> ToolCallPart:
    """Return a complete call of the tool `look`."""
    return ToolCallPart(call_id=call_id, name="look", arguments=arguments, executor=executor)


def asking(*calls: tuple[str, Approval]) -> Event:
    """Return the event that asks the client to answer calls of the tool `look`."""
    asked = [
        ToolCall(
            call_id=call_id, name="look", arguments={}, executor=Executor.client, index=1, step=1, approval=approval
        )
        for call_id, approval in calls
    ]
    return ActionRequiredEvent(calls=tuple(asked))


def types(sent: Sequence[dict[str, Any]]) -> list[str]:
    """Return the types of a front end's chunks or events."""
    return [str(one["type"]) for one in sent]
