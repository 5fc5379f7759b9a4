"""The model's view of a chat, updated write by write: each message is prepared once, at any length of the chat."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from turnwise.engine.prompt.history import is_sent, sendable
from turnwise.persistence.protocol import ChatStore
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, files_in, length_of, without_secrets
from turnwise.states.names import Audience, Executor
from turnwise.states.writes import CutHistory, EraseEdits, EraseMessage, InsertBoundary, InsertMessage, Write


class View:
    """The messages of a chat that the model sees, as of a history version."""

    def __init__(self, messages: Iterable[Message], history_version: int) -> None:
        self.messages: list[Message] = []
        """As they are stored, in the order in which they came."""
        self.history_version = history_version
        self.characters = 0
        """The length of all messages, for an estimate of their tokens."""
        self.has_files = False
        """Whether a message has a file."""
        self._sent: list[Message] = []
        self._providers: set[str] = set()
        """The providers whose models have answered."""
        self._for_others: dict[str, Message] = {}
        """By id, messages for other providers than their own."""
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
        return call_id in self._call_ids

    @property
    def is_paired(self) -> bool:
        """Whether each local and client call is followed by its one result, so that a request needs no repair."""
        return not self._unanswered and not self._astray

    def to_send(self, provider: str | None = None) -> list[Message]:
        """Return the messages for a request to that provider, without other providers' signatures, metadata and ids.

        They must not be changed in place.
        """
        if provider is None or self._providers <= {provider}:
            return [*self._sent]
        own = (None, provider)
        sent = [message if message.provider in own else self._for_other(message) for message in self._sent]
        return [message for message in sent if message.parts]

    def _for_other(self, message: Message) -> Message:
        if message.id not in self._for_others:
            public = without_secrets(message)
            parts = tuple(part for part in public.parts if is_sent(part, partial=message.partial))
            self._for_others[message.id] = replace(public, parts=parts, response_id=None)
        return self._for_others[message.id]

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        if message.provider is not None:
            self._providers.add(message.provider)
        self._call_ids.update(call.call_id for call in message.calls)
        self.characters += sum(length_of(part) for part in message.parts)
        self.has_files = self.has_files or any(True for _ in files_in(message.parts))
        for original in sendable([message]):
            self._sent.insert(self._find_position(original), original)
            self._pair(original)

    def _pair(self, message: Message) -> None:
        """Track calls without a result, and results or calls in a wrong place."""
        if message.result is not None:
            self._astray |= message.result.call_id not in self._unanswered
            self._unanswered.discard(message.result.call_id)
        else:
            call_ids = [call.call_id for call in message.calls if call.executor is not Executor.provider]
            again = len(set(call_ids)) != len(call_ids) or not self._local_or_client.isdisjoint(call_ids)
            self._astray |= bool(self._unanswered) or again
            self._local_or_client.update(call_ids)
            self._unanswered.update(call_ids)

    def _find_position(self, message: Message) -> int:
        """Return the position of a message: at the end, but the results of a step in the order of their calls."""
        place = len(self._sent)
        while message.role == "tool" and place:
            other = self._sent[place - 1]
            is_result_of_step = other.role == "tool" and other.step == message.step
            if not is_result_of_step or (other.call_index or 0) <= (message.call_index or 0):
                break
            place -= 1
        return place


class StoredHistory:
    """The history of one chat, as long as one worker holds it."""

    def __init__(self, store: ChatStore, chat_id: str) -> None:
        self._store = store
        self._chat_id = chat_id
        self._inherited: frozenset[str] | None = None
        self._hidden: tuple[View, list[Message]] | None = None
        """A view, and the turn's messages before its boundary."""

    async def of_turn(self, facts: Facts, view: View) -> list[Message]:
        """Return the messages of the current turn that are not cut, folded ones included."""
        turn, boundary = facts.turn, facts.history.boundary
        if self._hidden is None or self._hidden[0] is not view:
            reaches_back = boundary > turn.after
            history = await self._store.history(self._chat_id, after=turn.after) if reaches_back else []
            self._hidden = view, [message for message in history if message.position < boundary]
        later = (
            message
            for message in view.messages
            if message.position > boundary and message.audience is Audience.everyone
        )
        return [message for message in (*self._hidden[1], *later) if message.turn == turn.number]

    async def has_call(self, facts: Facts, view: View, call_id: str) -> bool:
        """Whether the chat has ever had a call of that id."""
        if view.has_call(call_id):
            return True
        everything_is_in_view = facts.history.foldable == facts.history.length
        if everything_is_in_view:
            return False
        return call_id in await self._inherited_calls(facts) or bool(await self._store.calls(self._chat_id, [call_id]))

    async def _inherited_calls(self, facts: Facts) -> frozenset[str]:
        """Return the ids of calls in the initial history, also if cut: they have no row in `calls`."""
        if self._inherited is None:
            began_with_some = facts.profile.forked_from is not None or facts.profile.imported
            history = await self._store.history(self._chat_id, at_version=1) if began_with_some else []
            self._inherited = frozenset(call.call_id for message in history for call in message.calls)
        return self._inherited
