"""Listens to the notifications of other processes, in a task and a session of its own."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio

from turnwise.logger import logger
from turnwise.persistence.postgres.liveness import Liveness
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.refusals import BROKEN
from turnwise.persistence.postgres.session import Session
from turnwise.persistence.postgres.timeouts import ANSWER_S, CHECK_EVERY_S, LISTEN_AGAIN_S

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
        """Return and clear the collected notices."""
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
        with anyio.fail_after(ANSWER_S):
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
        with self._pool.answer_of(session, within_s=ANSWER_S):
            await session.fetchval("SELECT 1")
        return False


async def ended(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
