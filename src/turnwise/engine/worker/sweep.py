"""Expires leases and deadlines, repairs strays, archives and deletes. A fault of one chat does not stop the others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from zlib import crc32

import msgspec

from turnwise.engine.isolation.error_texts import FailureLog
from turnwise.engine.jobs.leased_chat import NEWS_S
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.transactions.schedules import fire_due
from turnwise.engine.worker.identity import is_dead
from turnwise.engine.worker.retention import Archiving, Deletion, TimeTrust, check_not_awaited, due_chats
from turnwise.engine.worker.slots import Slots
from turnwise.logger import about, logger
from turnwise.states.errors import ChatUnreadable, StoreError, TurnwiseError
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.invariants import broken_invariants
from turnwise.states.model_errors import REPAIRED
from turnwise.states.names import SYSTEM
from turnwise.states.triggers import DeadlinePassed, LeaseExpired, Repaired

SWEEP_LIMIT = 100
"""The most leases, deadlines, chats to wake and strays of one sweep, besides the chats that pause."""
AT_ONCE = 10
"""Chats that are changed at a time: they share commits."""
CLEAN_EVERY = 60.0
"""Seconds between two clean-ups after deletions, which delay other writers."""
LONGEST_PAUSE = 64
"""The most sweeps that skip a chat after repeated failures."""

Due = tuple[str, Change | Archiving | Deletion]
"""A chat, and what is to happen to it."""


class _Pause(msgspec.Struct):
    """The pause of a chat that could not be changed."""

    sweeps: int
    """The number of sweeps that skip it."""
    left: int
    """The remaining ones."""
    head: tuple[int, str] | None
    """The end of its log."""


class Sweeper:
    """Expires leases and deadlines, sends scheduled messages, repairs strays, archives and deletes old chats."""

    def __init__(self, runtime: Runtime, slots: Slots) -> None:
        self._runtime = runtime
        self._slots = slots
        self.trust = TimeTrust(runtime)
        self._failures = FailureLog()
        self._pauses: dict[str, _Pause] = {}
        """Chats that could not be changed."""
        self._deleted = False
        """Whether bytes of a deleted chat are still in the files."""
        self._clean_at = runtime.clock.monotonic()
        self._ended: frozenset[str] = frozenset()
        """Dead workers whose leases were ended."""

    async def sweep(self) -> bool:
        """Sweep once; return whether another sweep would find more."""
        await self._end_leases_of_the_dead()
        limit = SWEEP_LIMIT + len(self._pauses)  # the chats to skip must not crowd out the others
        asked_at, began_at = self._runtime.clock.monotonic(), time.monotonic()
        overdue = await self._runtime.store.overdue(limit=limit)
        self.trust.compare(overdue.at, asked_at)
        if time.monotonic() - began_at > NEWS_S:
            self.trust.doubt_outage()
        deadlines = overdue.deadlines if self.trust.trusts_the_time() else ()
        leases = await self._without_doubt([lease for lease in overdue.leases if not self._slots.runs(*lease)])
        due: list[Due] = [(chat_id, LeaseExpired(token=token)) for chat_id, token in leases]
        due += [(chat_id, DeadlinePassed()) for chat_id in deadlines]
        due += [(chat_id, fire_due) for chat_id in overdue.to_wake]
        due += [(chat_id, _repair) for chat_id in overdue.strays]
        retained: Sequence[Due] = []
        if self.trust.trusts_ages:
            store, settings = self._runtime.store, self._runtime.settings
            retained = await due_chats(store, settings, as_of=self.trust.now, limit=limit)
        due += retained
        self._pauses = {chat_id: self._pauses[chat_id] for chat_id, _ in due if chat_id in self._pauses}
        changed = await self._change_each(self._from_own_place(due))
        if self._deleted and asked_at >= self._clean_at:
            self._deleted, self._clean_at = False, asked_at + CLEAN_EVERY
            self._runtime.tasks.start_soon(self._clean)
        lists = overdue.leases, deadlines, overdue.to_wake, overdue.strays, retained
        return changed > 0 and any(len(chats) >= limit for chats in lists)

    async def _clean(self) -> None:
        await self._runtime.files.collect()
        await self._runtime.store.scrub()

    def _from_own_place(self, due: list[Due]) -> list[Due]:
        """Rotate the list by an offset of this worker, so that workers do not all change the same chats."""
        if not due:
            return due
        place = crc32(self._runtime.worker_id.encode()) % len(due)
        return due[place:] + due[:place]

    async def _without_doubt(self, leases: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        """Return the leases that have certainly run out.

        After a clock step or an outage every live worker renews within one lease; until then only leases of dead
        workers count.
        """
        if self.trust.trusts_leases():
            return leases
        seen = {chat_id: await self.facts(chat_id) for chat_id, _ in leases}
        holders = {chat_id: facts.lease.worker for chat_id, facts in seen.items() if facts and facts.lease}
        return [(chat_id, token) for chat_id, token in leases if holders.get(chat_id) in self._ended]

    async def change(self, chat_id: str, change: Change | Archiving | Deletion) -> bool:
        """Change or delete a chat; return whether it was changed. A fault of the chat is logged."""
        try:
            if isinstance(change, Deletion):
                await self._runtime.writer.delete(chat_id, change.permit, actor=SYSTEM)
                self._deleted = True
            elif isinstance(change, Archiving):
                await check_not_awaited(self._runtime.store, chat_id)
                await self._runtime.writer.change(chat_id, change.change, actor=self._runtime.actor)
            else:
                await self._runtime.writer.change(chat_id, change, actor=self._runtime.actor)
        except ChatUnreadable as error:
            self._log_failure(chat_id, error)
        except StoreError:
            raise
        except TurnwiseError as error:
            facts = await self.facts(chat_id) if logger.listens(logging.DEBUG) else None
            if facts is not None:
                logger.debug("swept_by_another", problem=str(error), **about(facts))
        except Exception as error:  # noqa: BLE001 - a fault of one chat must not stop the others
            self._log_failure(chat_id, error)
        else:
            self._failures.succeeded(chat_id)
            return True
        return False

    async def facts(self, chat_id: str) -> Facts | None:
        """Return the facts of a chat; `None` if they cannot be read."""
        try:
            return await self._runtime.store.facts(chat_id)
        except ChatUnreadable as error:
            self._log_failure(chat_id, error)
        except StoreError:
            raise
        except TurnwiseError as error:
            logger.debug("chat_is_gone", chat_id=chat_id, problem=str(error))
        return None

    async def _change_each(self, due: Iterable[Due]) -> int:
        """Change the chats that are not paused, a few at a time, and return how many were changed."""
        awake = [(chat_id, change) for chat_id, change in due if not await self._is_paused(chat_id)]
        total, refused = 0, None
        for first in range(0, len(awake), AT_ONCE):
            batch = awake[first : first + AT_ONCE]
            changed, error = await self._change_together(batch)
            total += changed
            if error is None:
                refused = None
            elif refused is not None or len(batch) > 1:
                raise error  # the store took none of several chats: it is the cause
            else:
                refused = error
        if refused is not None:
            raise refused
        return total

    async def _change_together(self, batch: Sequence[Due]) -> tuple[int, StoreError | None]:
        """Return the number of changed chats, and the store's error if it refused all of them."""
        changes = (self.change(chat_id, change) for chat_id, change in batch)
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        for (chat_id, _), outcome in zip(batch, outcomes, strict=True):
            if outcome is True:
                self._pauses.pop(chat_id, None)
            else:
                await self._pause(chat_id)
        refused = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
        return outcomes.count(True), refused[-1] if len(refused) == len(batch) else None

    async def _is_paused(self, chat_id: str) -> bool:
        """Whether to skip a chat: not if its log has grown since, perhaps by a repair."""
        pause = self._pauses.get(chat_id)
        if pause is None:
            return False
        pause.left -= 1
        if pause.left < 0:
            return False
        if await self._head(chat_id) == pause.head:
            return True
        self._pauses.pop(chat_id, None)  # unless another sweep has changed the chat meanwhile
        return False

    async def _pause(self, chat_id: str) -> None:
        """Skip a chat in the next sweeps: none after its first failure, then more each time."""
        longer = min(max(1, self._pauses[chat_id].sweeps * 2), LONGEST_PAUSE) if chat_id in self._pauses else 0
        self._pauses[chat_id] = _Pause(longer, longer, await self._head(chat_id) if longer else None)

    async def _head(self, chat_id: str) -> tuple[int, str] | None:
        """Return the end of a chat's log; `None` if it cannot be read."""
        try:
            return await self._runtime.store.head(chat_id)
        except TurnwiseError:
            return None

    def _log_failure(self, chat_id: str, error: Exception) -> None:
        if not self._failures.is_new(chat_id, error):
            return
        if isinstance(error, ChatUnreadable):
            logger.warning("chat_unreadable", chat_id=chat_id, column=error.column, problem=error.problem)
        else:
            logger.exception("sweep_failed", chat_id=chat_id)

    async def _end_leases_of_the_dead(self) -> None:
        dead = await self._dead()
        for holder in sorted(dead - self._ended):
            logger.info("worker_is_dead", worker=holder)
            await self._runtime.store.renew(holder, 0)
        self._ended = dead

    async def _dead(self) -> frozenset[str]:
        """Return the lease holders whose processes are gone, by the operating system or the store."""
        others = await self._runtime.store.holders() - {self._runtime.worker_id}
        dead = frozenset(holder for holder in others if is_dead(holder))
        return dead | await self._runtime.store.gone(others - dead)


def _repair(unit: UnitOfWork) -> None:
    broken = broken_invariants(unit.facts)
    stored = unit.facts.state_as_stored or "''"
    error = ErrorInfo(kind=REPAIRED, message=f"found in state {stored} with {', '.join(broken)} broken")
    unit.fire(Repaired(error=error))
