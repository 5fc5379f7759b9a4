"""Validity: a history that a strict provider takes, made of one that it would refuse."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from turnwise.providers.protocol import ModelRequest
from turnwise.states.messages import (
    MarkerPart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turnwise.states.names import Audience, CallStatus, Executor

_log = logging.getLogger("turnwise.providers")

_NO_RESULT = "No result of this call is known."
_GO_ON = "Continue."


def made_valid(request: ModelRequest) -> list[Message]:
    """Return the request's messages as any provider takes them; the log says when something had to be changed.

    Nothing empty is left. Each call is followed by its one result, in call order: a result without its call is dropped,
    a call without a result gets a synthetic one. A provider's call and its result stand side by side or not at all.
    The history begins with the user and does not end with a reply; system messages at its end stay there.
    """
    repair = _Repair()
    cleaned = [kept for message in request.messages if (kept := repair.cleaned(message)) is not None]
    paired = list(repair.paired(cleaned))
    if not repair.changes and paired != cleaned:
        repair.changes.append("results stood away from their calls")
    messages = repair.framed(paired)
    if repair.changes:
        _log.warning("history_repaired chat_id=%s changes=%s", request.chat_id, "; ".join(repair.changes))
    return messages


class _Repair:
    def __init__(self) -> None:
        self.changes: list[str] = []

    def cleaned(self, message: Message) -> Message | None:
        """Return the message without what cannot be sent; `None` if nothing is left."""
        parts = tuple(part for part in message.parts if not _is_empty(part))
        if message.role == "assistant":
            parts = self._with_paired_provider_calls(message, parts)
        if len(parts) != len(message.parts):
            message = message.model_copy(update={"parts": parts})
        return message if parts else None

    def paired(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Yield the messages, each local or client call followed by its one result."""
        results: dict[str, Message] = {}
        for message in messages:
            if message.result is not None:
                results.setdefault(message.result.call_id, message)
        used: set[str] = set()
        place = {id(message): index for index, message in enumerate(messages)}
        for message in messages:
            if message.result is not None:
                if results[message.result.call_id] is not message or message.result.call_id not in used:
                    self.changes.append(f"result {message.result.call_id} answers no call before it")
                continue
            yield message
            for call in message.calls:
                if call.executor is Executor.provider:
                    continue
                answer = results.get(call.call_id)
                if answer is None or place[id(answer)] < place[id(message)] or call.call_id in used:
                    self.changes.append(f"call {call.call_id} has no result")
                    answer = _unknown(message, call)
                used.add(call.call_id)
                yield answer

    def framed(self, messages: list[Message]) -> list[Message]:
        """Return the messages, begun by the user and with something to answer."""
        spoken = [message for message in messages if message.role != "system"]
        if not spoken:
            return messages
        if spoken[0].role != "user":
            self.changes.append("the history did not begin with the user")
            messages = [_user(spoken[0]), *messages]
        if spoken[-1].role == "assistant":
            self.changes.append("the history ended with a reply")
            place = messages.index(spoken[-1]) + 1
            messages = [*messages[:place], _user(spoken[-1]), *messages[place:]]
        return messages

    def _with_paired_provider_calls(self, message: Message, parts: Iterable[Part]) -> tuple[Part, ...]:
        kept: list[Part] = []
        ran = {part.call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
        for part in parts:
            if isinstance(part, ToolResultPart):
                continue
            if not isinstance(part, ToolCallPart) or part.executor is not Executor.provider:
                kept.append(part)
            elif part.call_id in ran:
                kept += [part, ran.pop(part.call_id)]
            else:
                self.changes.append(f"provider call {part.call_id} has no result")
        self.changes += [f"provider result {call_id} has no call" for call_id in ran]
        return tuple(kept)


def _is_empty(part: Part) -> bool:
    match part:
        case TextPart():
            return not part.text.strip()
        case ReasoningPart():
            return not part.text and part.signature is None
        case SourcePart() | MarkerPart():
            return True
        case _:
            return False


def _unknown(message: Message, call: ToolCallPart) -> Message:
    part = ToolResultPart(
        call_id=call.call_id, name=call.name, output=_NO_RESULT, is_error=True, outcome=CallStatus.unknown
    )
    return _beside(message, f"{call.call_id}-unknown").model_copy(update={"role": "tool", "parts": (part,)})


def _user(like: Message) -> Message:
    return _beside(like, "user-transient").model_copy(update={"role": "user", "parts": (TextPart(text=_GO_ON),)})


def _beside(like: Message, message_id: str) -> Message:
    """Return a message for one request only, next to one that is stored."""
    made = {"id": message_id, "position": 0, "audience": Audience.model, "partial": False, "synthetic": True}
    return like.model_copy(update=made)
