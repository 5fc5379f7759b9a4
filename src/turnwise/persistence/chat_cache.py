"""The caches of a process: the last known facts of chats, and chats that could not be handled.

A failed chat is logged once and retried with growing pauses, until any process commits to it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

from msgspec.structs import replace

from turnwise.foreign import text_of
from turnwise.logger import logger
from turnwise.persistence.commit import CachedChat
from turnwise.states.errors import ChatUnreadable
from turnwise.states.messages import size_of
from turnwise.states.values.plain import type_name

_CHATS: Final = 1024
_BYTES: Final = 67_108_864
"""What the queues of these chats may hold together; that of the newest chat counts for nothing."""


class ChatCache:
    """Caches the facts of a limited number of chats. Thread-safe.

    May be stale, or ahead of a rolled-back commit: every commit checks it.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._cached: OrderedDict[str, CachedChat] = OrderedDict()
        self._sizes: dict[str, int] = {}
        """The bytes of each queue that is not empty."""
        self._locks: dict[str, _Lock] = {}

    def lock(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        """Return a lock that serializes the changes of a chat in this process."""
        return _Turn(self._locks, chat_id)

    def get(self, chat_id: str) -> CachedChat | None:
        return self._cached.get(chat_id)

    def put(self, current: CachedChat) -> None:
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
        with self._changing:
            current = self._cached.get(chat_id)
            if current is not None:
                self._cached[chat_id] = replace(current, facts=current.facts.with_last_seq(event_seq))

    def known(self) -> list[str]:
        with self._changing:
            return [*self._cached]

    def forget(self, chat_id: str) -> None:
        with self._changing:
            self._cached.pop(chat_id, None)
            self._sizes.pop(chat_id, None)


class _Lock(asyncio.Lock):
    users = 0
    """How many tasks hold the lock or wait for it."""


class _Turn:
    """A task's turn to change a chat. The last task drops the lock; a dictionary of weak references would cost more."""

    __slots__ = ("_chat_id", "_locks")

    def __init__(self, locks: dict[str, _Lock], chat_id: str) -> None:
        self._locks = locks
        self._chat_id = chat_id

    async def __aenter__(self) -> None:
        lock = self._locks.get(self._chat_id)
        if lock is None:
            lock = self._locks[self._chat_id] = _Lock()
        lock.users += 1
        try:
            await lock.acquire()
        except BaseException:
            self._leave(lock)
            raise

    async def __aexit__(self, *_: object) -> None:
        lock = self._locks[self._chat_id]
        lock.release()
        self._leave(lock)

    def _leave(self, lock: _Lock) -> None:
        lock.users -= 1
        if not lock.users:
            del self._locks[self._chat_id]


_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_REMEMBERED: Final = 10_000


class _Failure(NamedTuple):
    problem: str
    version: object
    pause: float
    until: float


class SkippedChats:
    """Remembers the chats that this process skipped, and why."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, _Failure] = OrderedDict()

    def skips(self, chat_id: str, version: object) -> bool:
        """Whether it is too early to retry a chat that is unchanged since its failure."""
        failure = self._failures.get(chat_id)
        return failure is not None and failure.version == version and self._now() < failure.until

    def note(self, event: str, chat_id: str, error: Exception, *, version: object = None) -> None:
        """Note that a chat was skipped at a version, and log it unless the same was logged before.

        A chat that cannot be read is then left alone for a while: it does not become readable by itself.
        """
        before, problem = self._failures.get(chat_id), text_of(error, otherwise=type_name(error))
        if before is None or before.problem != problem:
            if isinstance(error, ChatUnreadable):
                logger.error(event, chat_id=chat_id, problem=problem)
            else:
                logger.exception(event, error=error, chat_id=chat_id, problem=problem)
        pause = 0.0
        if isinstance(error, ChatUnreadable):
            again = before is not None and before.version == version and before.pause > 0
            pause = min(before.pause * 2, _LONGEST_PAUSE) if again and before is not None else _FIRST_PAUSE
        self._failures[chat_id] = _Failure(problem, version, pause, self._now() + pause)
        self._failures.move_to_end(chat_id)
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)

    def forget(self, chat_id: str) -> None:
        """Note that a chat was handled: its next failure is logged again."""
        self._failures.pop(chat_id, None)
