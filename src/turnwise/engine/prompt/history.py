"""Builds prompts from copies of the history."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from turnwise.states.message_order import in_call_order
from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turnwise.states.names import Audience, CallStatus, Executor
from turnwise.states.values.values import Json

GO_ON: Final = "user-transient"
"""The id of a request to go on that follows an unfinished answer: it is stored nowhere."""
SUMMARY_PREFIX: Final = (
    "The earlier conversation was summarised to make room. Continue the work from this summary; do not greet, "
    "do not repeat what is done.\n\n"
)
"""The prefix of a summary, which is sent as a message of the user's."""
EDITED: Final = "The user allowed this call with other arguments:"


def sendable(messages: Sequence[Message]) -> list[Message]:
    """Return the history as a strict provider takes it.

    It leaves out sources, reasoning that an interrupt left without its signature, empty parts, and a provider's call
    without its result. The result of a call that the user edited states the arguments that it ran with.
    """
    sent: list[Message] = []
    for message in messages:
        parts = message.parts
        if message.role == "assistant":
            parts = with_results(parts)
        elif message.result is not None and message.result.edited_arguments is not None:
            parts = (_with_edits(message.result),)
        if not all(is_sent(part, partial=message.partial) for part in parts):
            parts = tuple(part for part in parts if is_sent(part, partial=message.partial))
        if parts:
            sent.append(message if parts is message.parts else replace(message, parts=parts))
    return in_call_order(sent)


def with_results(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return an assistant's parts without provider calls that have no result, and results that have no call."""
    ran = {part.call_id for part in parts if isinstance(part, ToolCallPart) and part.executor is Executor.provider}
    answered = {part.call_id for part in parts if isinstance(part, ToolResultPart)}
    if ran == answered:
        return parts
    both = ran & answered
    return tuple(
        part
        for part in parts
        if not (isinstance(part, ToolCallPart) and part.executor is Executor.provider and part.call_id not in both)
        and not (isinstance(part, ToolResultPart) and part.call_id not in both)
    )


def _with_edits(result: ToolResultPart) -> ToolResultPart:
    note = f"{EDITED} {msgspec.json.encode(result.edited_arguments).decode()}"
    output = result.output
    noted: Json = f"[{note}]\n{output}" if isinstance(output, str) else {"note": note, "output": output}
    return replace(result, output=noted, edited_arguments=None)


def with_continue_prompt(messages: list[Message], continue_prompt: str) -> list[Message]:
    """Return the messages, with a transient request to go on if they end in a partial or carried answer."""
    if not messages or messages[-1].role != "assistant":
        return messages
    return [*messages, transient("user", continue_prompt, messages[-1])]


def transient(role: str, text: str, like: Message) -> Message:
    """Return a message for one request only: it has no position and is never stored."""
    return Message(
        id=f"{role}-transient",
        role="user" if role == "user" else "system",
        parts=(TextPart(text=text),),
        turn=like.turn,
        step=like.step,
        created_at=like.created_at,
        audience=Audience.model,
        synthetic=True,
    )


def unanswered(
    messages: Sequence[Message], *, ending: Collection[str] = (), going_on: int | None = None
) -> tuple[int, ...]:
    """Return the positions of the user's own messages without an answer.

    An answer is a complete reply with text and without tool calls, unless it was refused: then the model was asked
    again, or will be, in the turn `going_on`. The success of one of the `ending` calls, which end their turn, is one,
    too.
    """
    positions: list[int] = []
    asked_again = False
    for message in reversed(messages):
        was_refused = asked_again or message.turn == going_on
        if _has_ended(message, ending) or (_is_answer(message) and not was_refused):
            break
        if message.role == "assistant":
            asked_again = True
        elif message.role == "user" and not is_made(message):
            asked_again = False
            positions.append(message.position)
    return tuple(reversed(positions))


def is_made(message: Message) -> bool:
    """Whether turnwise or a strategy wrote a user's message: a user's own belongs to no step."""
    return message.step > 0


def _is_answer(message: Message) -> bool:
    if message.role != "assistant" or message.partial:
        return False
    if any(call.executor is not Executor.provider for call in message.calls):
        return False
    return bool(message.text.strip()) or any(isinstance(part, FilePart) for part in message.parts)


def _has_ended(message: Message, ending: Collection[str]) -> bool:
    result = message.result
    return result is not None and result.call_id in ending and result.outcome is CallStatus.succeeded


def is_said(part: Part) -> bool:
    """Whether a part has content for a model: sources and blank text have none."""
    return not isinstance(part, SourcePart) and not (isinstance(part, TextPart) and not part.text.strip())


def is_blank(part: Part) -> bool:
    """Whether a part is only white space, which is neither stored nor sent."""
    if isinstance(part, TextPart):
        return not part.text.strip()
    return isinstance(part, ReasoningPart) and part.signature is None and not part.text.strip()


def is_sent(part: Part, *, partial: bool) -> bool:
    """Whether a part of a message goes to a model; of a partial message, no reasoning without its signature."""
    if not is_said(part):
        return False
    match part:
        case ReasoningPart():
            return part.signature is not None or (bool(part.text.strip()) and not partial)
        case _:
            return True
