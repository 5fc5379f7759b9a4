"""The chat cache: where chats stood when this process last read or changed them."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from typing import Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from turnwise.persistence.commit import CachedChat
from turnwise.states.messages import size_of

_CHATS: Final = 1024
_BYTES: Final = 67_108_864
"""What the queues of these chats may hold together; that of the newest chat counts for nothing."""


class ChatCache:
    """Keeps where a limited number of chats stood last; any thread may use it.

    It may be out of date, or ahead of what was rolled back: every commit checks it.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._cached: OrderedDict[str, CachedChat] = OrderedDict()
        self._sizes: dict[str, int] = {}
        """The bytes of each queue that is not empty."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        """Return a lock on a chat: its changes in this process wait for each other, and race only with others."""
        lock = self._turns.get(chat_id)
        if lock is None:
            self._turns[chat_id] = lock = asyncio.Lock()
        return lock

    def get(self, chat_id: str) -> CachedChat | None:
        """Return the chat's last known standing; `None` without one."""
        return self._cached.get(chat_id)

    def put(self, current: CachedChat) -> None:
        """Remember where a chat stands."""
        chat_id, queue = current.facts.chat_id, current.facts.queue
        with self._changing:
            before = self._cached.get(chat_id)
            if before is None or before.facts.queue is not queue:
                self._sizes.pop(chat_id, None)
                if queue:
                    self._sizes[chat_id] = sum(size_of(queued.parts) for queued in queue)
            self._cached[chat_id] = current
            self._cached.move_to_end(chat_id)
            while len(self._cached) > _CHATS or (self._sizes and self._is_too_large(chat_id)):
                oldest, _ = self._cached.popitem(last=False)
                self._sizes.pop(oldest, None)

    def _is_too_large(self, newest: str) -> bool:
        return sum(self._sizes.values()) - self._sizes.get(newest, 0) > _BYTES

    def move(self, chat_id: str, event_seq: int) -> None:
        """Update the number of a chat's last event."""
        with self._changing:
            current = self._cached.get(chat_id)
            if current is not None:
                self._cached[chat_id] = replace(current, facts=current.facts.with_last_seq(event_seq))

    def known(self) -> list[str]:
        """Return the chats in the cache."""
        with self._changing:
            return [*self._cached]

    def forget(self, chat_id: str) -> None:
        """Forget a chat."""
        with self._changing:
            self._cached.pop(chat_id, None)
            self._sizes.pop(chat_id, None)
