"""What the store has of a chat's history beside what the model sees: read where it is needed, once."""

from __future__ import annotations

from turnwise.engine.prompt.context import View
from turnwise.persistence.protocol import ChatStore
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import Audience


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
        """Return whether the chat has ever had a call of that id."""
        if view.has_call(call_id):
            return True
        everything_is_in_view = facts.history.foldable == facts.history.length
        if everything_is_in_view:
            return False
        return call_id in await self._inherited_calls(facts) or bool(await self._store.calls(self._chat_id, [call_id]))

    async def _inherited_calls(self, facts: Facts) -> frozenset[str]:
        """Return the ids of calls that the chat began with, cut since or not: they have no row in its `calls`."""
        if self._inherited is None:
            began_with_some = facts.profile.forked_from is not None or facts.profile.imported
            history = await self._store.history(self._chat_id, at_version=1) if began_with_some else []
            self._inherited = frozenset(call.call_id for message in history for call in message.calls)
        return self._inherited
