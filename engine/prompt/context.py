"""The view of a chat: what the model sees of it, kept current write by write.

A step costs the same at any length of the chat: what a request needs of a message is worked out once, when it comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Final

from msgspec.structs import replace

from turnwise.engine.prompt.history import length_of, sendable
from turnwise.states.messages import Message, Part
from turnwise.states.names import Audience, Executor
from turnwise.states.writes import CutHistory, EraseEdits, EraseMessage, InsertBoundary, InsertMessage, Write

_OPEN: Final = ("arguments", "output", "metadata")
"""The fields of parts that hold what can be changed in place."""


class View:
    """What the model sees of a chat, as of a history version."""

    def __init__(self, messages: Iterable[Message], history_version: int) -> None:
        self.messages: list[Message] = []
        """As they are stored, in the order in which they came."""
        self.history_version = history_version
        self.characters = 0
        """How long all of it is, for an estimate of its tokens."""
        self._sent: list[Message] = []
        self._fragile: list[tuple[list[Any], list[Any], Message, Message]] = []
        """Messages with parts that can be changed in place: those parts, and the same of the copy that is sent."""
        self._call_ids: set[str] = set()
        self._unanswered: set[str] = set()
        self._astray = False
        for message in messages:
            self._append(message)

    def after(self, write: Write, history_version: int) -> View | None:
        """Return the view after a write; `None` if it has to be read again."""
        match write:
            case InsertMessage(message):
                if message.audience is not Audience.user:
                    self._append(message)
                self.history_version = history_version
            case InsertBoundary() | CutHistory() | EraseMessage() | EraseEdits():
                return None
        return self

    def has_call(self, call_id: str) -> bool:
        """Whether one of the messages asks for that call."""
        return call_id in self._call_ids

    @property
    def is_paired(self) -> bool:
        """Whether each local and client call is followed by its one result, so that a request needs no repair."""
        return not self._unanswered and not self._astray

    def to_send(self) -> list[Message]:
        """Return the messages for a request, as a strict provider takes them.

        They are copies, made once, and restored if an adapter has changed one: its changes never reach the history.
        """
        for place, (mine, theirs, original, copy) in enumerate(self._fragile):
            if mine != theirs:
                fresh = _apart(original)
                self._sent[next(at for at, sent in enumerate(self._sent) if sent is copy)] = fresh
                self._fragile[place] = (mine, _containers(fresh), original, fresh)
        return [*self._sent]

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._call_ids.update(call.call_id for call in message.calls)
        self.characters += sum(length_of(part) for part in message.parts)
        for original in sendable([message]):
            copy, mine = original, _containers(original)
            if mine:
                copy = _apart(original)
                self._fragile.append((mine, _containers(copy), original, copy))
            self._sent.insert(self._place_of(copy), copy)
            self._pair(original)

    def _pair(self, message: Message) -> None:
        """Note which calls wait for a result, and whether a result stands where none is awaited."""
        if message.result is not None:
            self._astray |= message.result.call_id not in self._unanswered
            self._unanswered.discard(message.result.call_id)
        else:
            asked = [call.call_id for call in message.calls if call.executor is not Executor.provider]
            self._astray |= bool(self._unanswered) or len(set(asked)) != len(asked)
            self._unanswered.update(asked)

    def _place_of(self, message: Message) -> int:
        """Return where a message belongs: at the end, but the results of a step in the order of their calls."""
        place = len(self._sent)
        while message.role == "tool" and place and _comes_after(self._sent[place - 1], message):
            place -= 1
        return place


def _comes_after(known: Message, message: Message) -> bool:
    """Whether a message is the result of a later call of the same step: only results have a place among the calls."""
    return known.step == message.step and (known.call_index or 0) > (message.call_index or 0)


def _containers(message: Message) -> list[Any]:
    """Return what of a message can be changed in place."""
    values = (getattr(part, name, None) for part in message.parts for name in _OPEN)
    return [value for value in values if isinstance(value, dict | list)]


def _apart(message: Message) -> Message:
    """Return a copy that shares nothing with the message that can be changed in place."""
    return replace(message, parts=tuple(map(_part_apart, message.parts)))


def _part_apart(part: Part) -> Part:
    found = {name: getattr(part, name, None) for name in _OPEN}
    return replace(part, **{name: deepcopy(value) for name, value in found.items() if isinstance(value, dict | list)})
