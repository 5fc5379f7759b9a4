"""Notifications between processes that share a PostgreSQL database, sent after the commit; they may be lost."""

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
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.refusals import BROKEN
from turnwise.persistence.postgres.session import Session, in_use
from turnwise.persistence.postgres.timeouts import ANSWER_S, CHECK_EVERY_S, LISTEN_AGAIN_S
from turnwise.states.errors import StoreError

FIRST_PAUSE_S: Final = 0.1
_REMEMBERED: Final = 1000
"""Unread notifications that a slow reader may have; with more than that it gets a single "some chat"."""


class PendingNotifications:
    """The notices that have arrived and were not read yet."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._chat_ids: dict[str | None, None] = {}
        self.arrival = asyncio.Event()

    def put(self, payload: object) -> None:
        """Add the chats that a notice names, unless this process has sent it."""
        origin, _, chat_ids = str(payload).partition(" ")
        if origin != self._origin:
            self._chat_ids.update(dict.fromkeys(chat_ids.split("\n")))
            if len(self._chat_ids) > _REMEMBERED:
                self._chat_ids = {None: None}
            self.arrival.set()

    def miss(self) -> None:
        """Note that notices may have been missed."""
        self._chat_ids = {None: None}
        self.arrival.set()

    def take(self) -> list[str | None]:
        chat_ids = [*self._chat_ids]
        self._chat_ids.clear()
        self.arrival.clear()
        return chat_ids


class NotificationListener:
    """Keeps a session that listens, and that holds the locks by which others see that this process lives."""

    def __init__(self, pool: Pool, liveness: Liveness, pending: PendingNotifications) -> None:
        self._pool = pool
        self._liveness = liveness
        self._pending = pending

    async def run(self) -> None:
        """Listen for ever. Each session begins with `None`: notifications may have been missed."""
        pause, failing = FIRST_PAUSE_S, False
        while True:
            session: Session | None = None
            began = False
            try:
                session = await self._pool.connect()
                over = await self._attach(session)
                pause, began, failing = FIRST_PAUSE_S, True, False
                self._pending.miss()
                while not await self._is_over(session, over):
                    pass
                logger.warning("listening_broke_off", problem="the session has ended")
            except BROKEN as error:
                problem = self._pool.meaning_of(error).problem
                if began:
                    logger.warning("listening_broke_off", problem=problem)
                elif not failing:
                    logger.warning("listening_failed", problem=problem)
                    self._pending.miss()
                failing = not began
            finally:
                self._liveness.judge_later()
                if session is not None:
                    session.terminate()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LISTEN_AGAIN_S)

    async def _attach(self, session: Session) -> asyncio.Event:
        """Collect the notices of a session; return what is set when it ends."""
        over = asyncio.Event()
        with in_use(session), anyio.fail_after(ANSWER_S):
            channel = await session.fetchval("SELECT current_schema()")
            await session.add_listener(channel, lambda _on, _pid, _channel, payload: self._pending.put(payload))
            session.add_termination_listener(lambda _on: over.set())
            await self._liveness.began(session)
        return over

    async def _is_over(self, session: Session, over: asyncio.Event) -> bool:
        """Wait until the session has ended, or the next check is due; then check whether its server answers."""
        with anyio.move_on_after(CHECK_EVERY_S):
            await over.wait()
        if session.is_closed():
            return True
        with in_use(session), self._pool.answer_of(session, within_s=ANSWER_S):
            await session.fetchval("SELECT 1")
        return False


async def ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_SEND: Final = "SELECT pg_notify(current_schema(), payload) FROM unnest($1::text[]) AS payload"
_GATHER: Final = 0.01
"""Seconds for which a notification waits, so that several go in one notice."""
_PAYLOAD: Final = 7_900
"""Bytes of ids in one notice; PostgreSQL allows 7,999."""


class Notifications:
    """Notifies other processes of the chats that this one has changed, and listens for theirs.

    The session that listens also holds the locks by which they see that this process lives.

    They are not sent inside the transactions: all transactions that notify commit one after another. They are sent in
    groups, because every process receives every one.
    """

    def __init__(self, pool: Pool, liveness: Liveness, *, poll_interval: float, listens: bool = True) -> None:
        self._pool = pool
        self._liveness = liveness
        self._poll_interval = poll_interval
        self._listens = listens
        self._origin = ""
        """Marks the notifications of this process since it opened."""
        self._waiting: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: set[asyncio.Task[None]] = set()
        self._closed = False

    def open(self) -> None:
        """Begin, perhaps again after `close`, and perhaps in a process that was forked meanwhile."""
        self._origin = secrets.token_hex(8)
        self._closed = False

    def notify(self, chat_id: str) -> None:
        self._waiting.add(chat_id)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        """Send what waits and stop listening."""
        self._closed = True
        if self._sending is not None:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._sending])
        listening, self._listening = self._listening, set()
        await ended(*listening)

    async def _send(self) -> None:
        while self._waiting:
            if not self._closed:
                await asyncio.sleep(_GATHER)
            chat_ids, self._waiting = self._waiting, set()
            try:
                await self._pool.run(partial(_send, [f"{self._origin} {ids}" for ids in _pack(chat_ids)]))
            except StoreError as error:
                logger.warning("notices_lost", count=len(chat_ids), problem=error.problem)

    async def listen(self) -> AsyncIterator[str | None]:
        """Yield the chats that other processes have changed; `None` when some may have been missed.

        It polls by itself: `None` comes every `poll_interval` seconds, also if the listener fails. That one is a task
        of its own, to notice the end of its session while a reader waits for the database.
        """
        pending = PendingNotifications(self._origin)
        listening: asyncio.Task[None] | None = None
        if self._listens:
            listener = NotificationListener(self._pool, self._liveness, pending)
            listening = asyncio.get_running_loop().create_task(listener.run())
            self._listening.add(listening)
        else:
            pending.miss()
        try:
            polled_at = monotonic()
            while not self._closed:
                with anyio.move_on_after(polled_at + self._poll_interval - monotonic()):
                    await pending.arrival.wait()
                for chat_id in pending.take():
                    yield chat_id
                # Also while the notices of other chats come: one of this may have been lost.
                if monotonic() >= polled_at + self._poll_interval:
                    yield None
                    polled_at = monotonic()
        finally:
            if listening is not None:
                self._listening.discard(listening)
                await ended(listening)


def _pack(chat_ids: Iterable[str]) -> Iterator[str]:
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
