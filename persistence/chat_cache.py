"""The chat cache: where chats stood when this process last read or changed them."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from typing import Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from turnwise.persistence.commit import Standing

_CHATS: Final = 1024


class ChatCache:
    """Keeps the latest standing of a limited number of chats; any thread may use it.

    It may be out of date, or ahead of what was rolled back: every commit checks it.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._standings: OrderedDict[str, Standing] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        """Return a lock on a chat: its changes in this process wait for each other, and race only with others."""
        lock = self._turns.get(chat_id)
        if lock is None:
            self._turns[chat_id] = lock = asyncio.Lock()
        return lock

    def get(self, chat_id: str) -> Standing | None:
        """Return the chat's last known standing; `None` without one."""
        return self._standings.get(chat_id)

    def put(self, standing: Standing) -> None:
        """Remember where a chat stands."""
        with self._changing:
            self._standings[standing.facts.chat_id] = standing
            self._standings.move_to_end(standing.facts.chat_id)
            if len(self._standings) > _CHATS:
                self._standings.popitem(last=False)

    def move(self, chat_id: str, event_seq: int) -> None:
        """Update the number of a chat's last event."""
        with self._changing:
            standing = self._standings.get(chat_id)
            if standing is not None:
                self._standings[chat_id] = replace(standing, facts=standing.facts.with_last_seq(event_seq))

    def known(self) -> list[str]:
        """Return the chats of which a standing is kept."""
        with self._changing:
            return [*self._standings]

    def forget(self, chat_id: str) -> None:
        """Forget a chat."""
        with self._changing:
            self._standings.pop(chat_id, None)
