"""Repairs a history that a strict provider would refuse, so that it accepts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar
from weakref import ref

import msgspec
from msgspec.structs import replace

from turnwise.logger import logger
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

_NO_RESULT = "No result of this call is known."
_GO_ON = "Continue."


class _Checked(msgspec.Struct, frozen=True):
    """A message of a history, checked."""

    mended: Message | None
    """The message without the parts that cannot be sent; `None` if it has no such parts."""
    is_empty: bool
    """Whether it has no part that can be sent."""
    calls: tuple[ToolCallPart, ...]
    """The calls that a message of its own answers."""
    answers: str | None
    """The id of the call that it answers."""
    changes: tuple[str, ...]


class HistoryRepair:
    """Makes histories valid. Each message is checked once, for as long as it is in memory."""

    def __init__(self) -> None:
        self.checked = PerMessage(_checked)

    def repair(self, request: ModelRequest) -> list[Message]:
        """Return the request's messages as any provider takes them; log each repair.

        Nothing empty is left. Each call is followed by its one result, in call order: a result without its call is
        dropped, a call without a result gets a synthetic one. A provider's call and its result stand side by side or
        not at all. The history begins with the user and does not end with a reply; system messages at its end stay
        there.
        """
        changes: list[str] = []
        return _log_changes(request, _frame_history(self._pair_results(request, changes), changes), changes)

    def pair_results(self, request: ModelRequest) -> list[Message]:
        """Return the request's messages, each call followed by its one result, as `repair` does and no more."""
        changes: list[str] = []
        return _log_changes(request, self._pair_results(request, changes), changes)

    def _pair_results(self, request: ModelRequest, changes: list[str]) -> list[Message]:
        sendable: list[tuple[Message, _Checked]] = []
        for message in request.messages:
            checked = self.checked(message)
            changes += checked.changes
            if not checked.is_empty:
                sendable.append((checked.mended or message, checked))
        paired = list(_with_one_result_each(sendable, changes))
        if not changes and paired != [message for message, _ in sendable]:
            changes.append("results stood away from their calls")
        return paired


def _with_one_result_each(messages: Sequence[tuple[Message, _Checked]], changes: list[str]) -> Iterator[Message]:
    """Yield the messages, each local or client call followed by its one result; append repairs to `changes`."""
    results: dict[str, tuple[int, Message]] = {}
    for place, (message, checked) in enumerate(messages):
        if checked.answers is not None:
            results.setdefault(checked.answers, (place, message))
    used: set[str] = set()
    for place, (message, checked) in enumerate(messages):
        if checked.answers is not None:
            if results[checked.answers][0] != place or checked.answers not in used:
                changes.append(f"result {checked.answers} answers no call before it")
            continue
        yield message
        for call in checked.calls:
            answered_at, answer = results.get(call.call_id, (place, message))
            if answered_at <= place or call.call_id in used:
                changes.append(f"call {call.call_id} has no result")
                answer = _unknown_result(message, call)
            used.add(call.call_id)
            yield answer


def _frame_history(messages: list[Message], changes: list[str]) -> list[Message]:
    """Return the messages with the user's first, and without a reply at the end."""
    first = next((message for message in messages if message.role != "system"), None)
    if first is None:
        return messages
    if first.role != "user":
        if not first.imported:  # a chat may begin with a greeting
            changes.append("the history did not begin with the user")
        messages = [_user(first), *messages]
    place = next(place for place in range(len(messages), 0, -1) if messages[place - 1].role != "system")
    last = messages[place - 1]
    if last.role == "assistant":
        changes.append("the history ended with a reply")
        messages = [*messages[:place], _user(last), *messages[place:]]
    return messages


def _log_changes(request: ModelRequest, messages: list[Message], changes: Sequence[str]) -> list[Message]:
    if changes:
        logger.warning(
            "history_repaired",
            chat_id=request.chat_id,
            step=request.step,
            attempt=request.attempt,
            changes="; ".join(changes),
        )
    return messages


def _checked(message: Message) -> _Checked:
    changes: list[str] = []
    parts = tuple(part for part in message.parts if not _is_empty(part))
    if message.role == "assistant":
        parts = _with_paired_provider_calls(message, parts, changes)
    mended = replace(message, parts=parts) if parts != message.parts else None
    sent = mended or message
    return _Checked(
        mended=mended,
        is_empty=not parts,
        calls=tuple(call for call in sent.calls if call.executor is not Executor.provider),
        answers=sent.result.call_id if sent.result is not None else None,
        changes=tuple(changes),
    )


def _with_paired_provider_calls(message: Message, parts: tuple[Part, ...], changes: list[str]) -> tuple[Part, ...]:
    """Return the parts, each provider's call followed by its result; append repairs to `changes`."""
    paired: list[Part] = []
    ran = {part.call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
    for part in parts:
        if isinstance(part, ToolResultPart):
            continue
        if not isinstance(part, ToolCallPart) or part.executor is not Executor.provider:
            paired.append(part)
        elif part.call_id in ran:
            paired += [part, ran.pop(part.call_id)]
        else:
            changes.append(f"provider call {part.call_id} has no result")
    changes += [f"provider result {call_id} has no call" for call_id in ran]
    if not changes and parts != tuple(paired):
        changes.append("a provider's result stood away from its call")
    return tuple(paired)


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


def _unknown_result(message: Message, call: ToolCallPart) -> Message:
    part = ToolResultPart(
        call_id=call.call_id, name=call.name, output=_NO_RESULT, is_error=True, outcome=CallStatus.unknown
    )
    return replace(_beside(message, f"{call.call_id}-unknown"), role="tool", parts=(part,))


def _user(like: Message) -> Message:
    return replace(_beside(like, "user-transient"), role="user", parts=(TextPart(text=_GO_ON),))


def _beside(like: Message, message_id: str) -> Message:
    """Return a message for one request only, next to one that is stored."""
    made = {"id": message_id, "position": 0, "audience": Audience.model, "partial": False, "synthetic": True}
    return replace(like, **made)


Worked = TypeVar("Worked")


class PerMessage(Generic[Worked]):
    """Caches a function of messages. The key is the message object: an edited message is another object.

    The result must not hold the message, which would then never be freed.
    """

    def __init__(self, work: Callable[[Message], Worked]) -> None:
        self._work = work
        self._results: dict[int, tuple[ref[Message], Worked]] = {}

    def __len__(self) -> int:
        """Return the number of known messages."""
        return len(self._results)

    def __call__(self, message: Message) -> Worked:
        """Return the cached or new result."""
        address, results = id(message), self._results
        entry = results.get(address)
        if entry is not None:
            return entry[1]
        worked = self._work(message)
        results[address] = (ref(message, lambda _: results.pop(address, None)), worked)
        return worked
