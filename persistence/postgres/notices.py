"""Notices between processes that share a PostgreSQL database: hints, sent after the commit, that may be lost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from time import monotonic
from typing import Final

import anyio
import asyncpg

from turnwise.logger import logger
from turnwise.persistence.postgres.liveness import Liveness
from turnwise.persistence.postgres.pool import BROKEN, Pool
from turnwise.states.errors import StoreError

_SEND: Final = "SELECT pg_notify(current_schema(), payload) FROM unnest($1::text[]) AS payload"
_GATHER: Final = 0.01
"""Seconds for which a hint waits, so that several go in one notice."""
_PAYLOAD: Final = 7_900
"""Bytes of ids in one notice; PostgreSQL allows 7,999."""
_ANSWER_WITHIN: Final = 5.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_REMEMBERED: Final = 1000
"""Unread hints that are kept for a slow reader; with more than that it gets a single "some chat"."""


class Notices:
    """Tells other processes which chats this one has changed, and listens for theirs.

    The session that listens also holds the locks by which they see that this process lives.

    Notices are not sent inside the transactions: all transactions that notify commit one after another. They are sent
    in groups, because every process receives every notice.
    """

    def __init__(self, pool: Pool, liveness: Liveness, *, poll_interval: float) -> None:
        self._pool = pool
        self._liveness = liveness
        self._poll_interval = poll_interval
        self._origin = ""
        """Tells the notices of this process, and of this time of being open, from those of others."""
        self._waiting: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: set[asyncpg.Connection] = set()
        self._closed = False

    def open(self) -> None:
        """Begin, perhaps again after `close`, and perhaps in a process that was forked meanwhile."""
        self._origin = secrets.token_hex(8)
        self._closed = False

    def tell(self, chat_id: str) -> None:
        """Tell the other processes, soon, that a chat was changed."""
        self._waiting.add(chat_id)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        """Send what waits and stop listening."""
        self._closed = True
        if self._sending is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._sending])
        while self._listening:
            self._listening.pop().terminate()

    async def _send(self) -> None:
        while self._waiting:
            if not self._closed:
                await asyncio.sleep(_GATHER)
            chat_ids, self._waiting = self._waiting, set()
            try:
                await self._pool.run(partial(_send, [f"{self._origin} {ids}" for ids in _packed(chat_ids)]))
            except StoreError as error:
                logger.warning("notices_lost", count=len(chat_ids), problem=error.problem)

    async def hear(self) -> AsyncIterator[str | None]:
        """Yield the chats that other processes have changed; `None` when some may have been missed."""
        pause, failing = _FIRST_PAUSE, False
        while not self._closed:
            connection: asyncpg.Connection | None = None
            began = False
            try:
                connection = await self._pool.connect()
                self._listening.add(connection)
                pending = _PendingNotices(self._origin)
                await pending.attach(connection)
                await self._liveness.began(connection)
                pause, began, failing = _FIRST_PAUSE, True, False
                yield None
                polled_at = monotonic()
                while not self._closed and await self._arrived(pending, connection, polled_at + self._poll_interval):
                    for hint in pending.taken():
                        yield hint
                    # Also while the notices of other chats come: one of this may have been lost.
                    if monotonic() >= polled_at + self._poll_interval:
                        yield None
                        polled_at = monotonic()
            except BROKEN as error:
                problem = self._pool.meaning_of(error).problem
                if began:
                    logger.warning("listening_broke_off", problem=problem)
                elif not failing:
                    logger.warning("listening_failed", problem=problem)
                failing = not began
            finally:
                self._liveness.judge_later()
                if connection is not None:
                    self._listening.discard(connection)
                    connection.terminate()
            if not self._closed:
                await anyio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _arrived(self, pending: _PendingNotices, connection: asyncpg.Connection, poll_at: float) -> bool:
        """Wait for hints, at most until the next poll is due; return whether the connection still stands."""
        with anyio.move_on_after(poll_at - monotonic()) as waiting:
            await pending.arrival.wait()
        if connection.is_closed():
            return False
        if waiting.cancelled_caught:
            await connection.fetchval("SELECT 1", timeout=_ANSWER_WITHIN)
        return True


def _packed(chat_ids: Iterable[str]) -> Iterator[str]:
    """Yield the ids in payloads, one on a line."""
    payload = ""
    for chat_id in chat_ids:
        if len((payload + chat_id).encode()) > _PAYLOAD:
            yield payload
            payload = ""
        payload += f"\n{chat_id}" if payload else chat_id
    if payload:
        yield payload


async def _send(payloads: list[str], connection: asyncpg.Connection) -> None:
    await connection.execute(_SEND, payloads)


class _PendingNotices:
    """The notices that have arrived and were not yielded yet."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._hints: dict[str | None, None] = {}
        self.arrival = anyio.Event()

    async def attach(self, connection: asyncpg.Connection) -> None:
        """Collect the notices of a connection, and note when it ends."""
        channel = await connection.fetchval("SELECT current_schema()")
        await connection.add_listener(channel, lambda _on, _pid, _channel, payload: self._put(payload))
        connection.add_termination_listener(lambda _on: self.arrival.set())

    def _put(self, payload: object) -> None:
        origin, _, chat_ids = str(payload).partition(" ")
        if origin == self._origin:
            return
        self._hints.update(dict.fromkeys(chat_ids.split("\n")))
        if len(self._hints) > _REMEMBERED:
            self._hints = {None: None}
        self.arrival.set()

    def taken(self) -> list[str | None]:
        """Return and clear the collected notices."""
        hints = [*self._hints]
        self._hints.clear()
        self.arrival = anyio.Event()
        return hints
