"""The latest events of chats under way: whoever begins to follow at the end of one need not read the database."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from turnwise.states.events import Event
from turnwise.states.facts import Facts

_CHATS: Final = 1024
_EVENTS: Final = 32


class Latest:
    """The last events of one chat, without a gap, and where the chat stood when they were committed."""

    __slots__ = ("events", "facts")

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.facts: Facts | None = None

    def add(self, events: Sequence[Event]) -> None:
        """Add events that were committed; they may be told in another order than they were committed in."""
        for event in events:
            if self.events and event.seq > self.events[-1].seq + 1:
                self.events.clear()
            if not self.events or event.seq > self.events[-1].seq:
                self.events.append(event)

    def after(self, number: int) -> list[Event] | None:
        """Return the events that follow this number; `None` if some of them are not known."""
        if not self.events or self.events[0].seq > number + 1:
            return None
        return [event for event in self.events if event.seq > number]


class LatestEvents:
    """Keeps the last events of the chats that this process has changed last, until somebody else may have changed them.

    A chat at rest is forgotten, unless it has just been created: who follows it waits for nothing that is near.
    """

    def __init__(self) -> None:
        self._chats: OrderedDict[str, Latest] = OrderedDict()

    def of(self, chat_id: str) -> Latest | None:
        """Return what is known of a chat."""
        return self._chats.get(chat_id)

    def add(self, chat_id: str, events: Sequence[Event], facts: Facts | None = None) -> None:
        """Add what was committed to a chat; `facts` say where it stands then."""
        latest = self._chats.get(chat_id)
        if latest is None:
            latest = self._chats[chat_id] = Latest()
            if len(self._chats) > _CHATS:
                self._chats.popitem(last=False)
        else:
            self._chats.move_to_end(chat_id)
        latest.add(events)
        if facts is not None and (latest.facts is None or facts.version > latest.facts.version):
            latest.facts = facts

    def forget(self, chat_id: str | None) -> None:
        """Forget a chat, or all."""
        if chat_id is None:
            self._chats.clear()
        else:
            self._chats.pop(chat_id, None)
