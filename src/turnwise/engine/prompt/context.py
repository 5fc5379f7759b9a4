"""The view of a chat: what the model sees of it, kept current write by write.

A step costs the same at any length of the chat: what a request needs of a message is worked out once, when it comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from turnwise.engine.prompt.history import sendable
from turnwise.states.messages import Message, files_in, length_of
from turnwise.states.names import Audience, Executor
from turnwise.states.writes import CutHistory, EraseEdits, EraseMessage, InsertBoundary, InsertMessage, Write


class View:
    """What the model sees of a chat, as of a history version."""

    def __init__(self, messages: Iterable[Message], history_version: int) -> None:
        self.messages: list[Message] = []
        """As they are stored, in the order in which they came."""
        self.history_version = history_version
        self.characters = 0
        """How long all of it is, for an estimate of its tokens."""
        self.has_files = False
        """Whether a message has a file, perhaps one that is stored beside the chat."""
        self._sent: list[Message] = []
        self._call_ids: set[str] = set()
        self._local_or_client: set[str] = set()
        """The local and client calls."""
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
        """Return the messages for a request, as a strict provider takes them. Nobody may change them in place."""
        return [*self._sent]

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        self._call_ids.update(call.call_id for call in message.calls)
        self.characters += sum(length_of(part) for part in message.parts)
        self.has_files = self.has_files or any(True for _ in files_in(message.parts))
        for original in sendable([message]):
            self._sent.insert(self._place_of(original), original)
            self._pair(original)

    def _pair(self, message: Message) -> None:
        """Note which calls wait for a result, and whether a result or a call stands where none belongs."""
        if message.result is not None:
            self._astray |= message.result.call_id not in self._unanswered
            self._unanswered.discard(message.result.call_id)
        else:
            call_ids = [call.call_id for call in message.calls if call.executor is not Executor.provider]
            again = len(set(call_ids)) != len(call_ids) or not self._local_or_client.isdisjoint(call_ids)
            self._astray |= bool(self._unanswered) or again
            self._local_or_client.update(call_ids)
            self._unanswered.update(call_ids)

    def _place_of(self, message: Message) -> int:
        """Return where a message belongs: at the end, but the results of a step in the order of their calls."""
        place = len(self._sent)
        while message.role == "tool" and place and _comes_after(self._sent[place - 1], message):
            place -= 1
        return place


def _comes_after(other: Message, message: Message) -> bool:
    """Whether a message is the result of a later call of the same step."""
    is_result_of_step = other.role == "tool" and other.step == message.step
    return is_result_of_step and (other.call_index or 0) > (message.call_index or 0)
