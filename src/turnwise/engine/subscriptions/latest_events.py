"""The latest events of running chats, cached for new subscribers."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from turnwise.states.events import Event, size_of_event

_CHATS: Final = 1024
_EVENTS: Final = 16
_LARGEST: Final = 16_384
"""Bytes of the largest event that is cached; a larger one is read from the store."""

Latest = deque[Event]
"""The last events of one chat, without a gap."""


class LatestEvents:
    """Caches the last events of the chats that this process has changed last, until others may have changed them."""

    def __init__(self) -> None:
        self._chats: OrderedDict[str, Latest] = OrderedDict()

    def of(self, chat_id: str) -> Latest:
        """Return the cached events of a chat. Take it before events are stored, to `add` them afterwards."""
        events = self._chats.setdefault(chat_id, deque(maxlen=_EVENTS))
        self._chats.move_to_end(chat_id)
        if len(self._chats) > _CHATS:
            self._chats.popitem(last=False)
        return events

    def add(self, chat_id: str, events: Sequence[Event], latest: Latest) -> None:
        """Cache stored events, in any order; forget the chat if it was forgotten meanwhile.

        The reason may have been a notification of a later commit, and no second notification will come.
        """
        if self._chats.get(chat_id) is not latest:
            self.forget(chat_id)
            return
        for event in events:
            if latest and event.seq > latest[-1].seq + 1:
                latest.clear()
            if size_of_event(event) > _LARGEST:
                latest.clear()
                continue
            if not latest or event.seq > latest[-1].seq:
                latest.append(event)

    def after(self, chat_id: str, number: int) -> list[Event]:
        """Return the events after this number; none if there may be a gap."""
        latest = self._chats.get(chat_id)
        if not latest or latest[0].seq > number + 1:
            return []
        return [event for event in latest if event.seq > number]

    def forget(self, chat_id: str | None) -> None:
        if chat_id is None:
            self._chats.clear()
        else:
            self._chats.pop(chat_id, None)
