"""Retention: archives chats that rest for long, and deletes archived ones, by a trusted clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from turnwise.engine.config.settings import Settings
from turnwise.engine.subagents.family import is_awaited
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.logger import logger
from turnwise.persistence.protocol import ChatStore, Permission
from turnwise.persistence.stored_chat import PartialRead
from turnwise.states.errors import TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.names import SYSTEM
from turnwise.states.triggers import Archived

TRUSTED_AFTER: Final = 3600.0
"""Seconds after a step of a wall clock until it decides again about ages: a deletion cannot be undone."""


class TimeTrust:
    """Detects clocks that were set forward, and outages of the store: both make live workers look dead."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.now, self._passed = runtime.clock.now(), runtime.clock.monotonic()
        self._doubts_until = self._passed
        """Until then, by the monotonic clock, a lease that seems to have run out may belong to a live worker."""
        self._doubt_ends: float | None = None
        """When doubt about an outage is over at the latest, however often the store fails or is slow meanwhile."""
        self._distrusts_until = self._passed
        """Until then nothing is old or too late: a clock that was set forward by mistake may be set back."""
        self._store_time: tuple[datetime, float] | None = None
        """The time of the store's machine, if it is another one, and when it was asked for, by the monotonic clock."""

    @property
    def trusts_ages(self) -> bool:
        """Whether ages are reliable, as of the last look at the clocks."""
        return self._passed >= self._distrusts_until

    def trusts_leases(self) -> bool:
        """Whether expired leases may be released. Not soon after a clock step or an outage: they may still be valid."""
        if self._passed < self._doubts_until:
            return False
        self._doubt_ends = None
        return True

    def trusts_the_time(self) -> bool:
        """Whether clocks may decide about ages and deadlines: none was set forward within the last hour."""
        now, passed = self._runtime.clock.now(), self._runtime.clock.monotonic()
        stepped = (now - self.now).total_seconds() - (passed - self._passed)
        self.now, self._passed = now, passed
        self._doubt_after(stepped)
        return passed >= self._distrusts_until

    def compare(self, at: datetime | None, asked_at: float) -> None:
        """Compare the progress of the clock of the store's machine with the monotonic one."""
        if at is not None and self._store_time is not None:
            before, asked_before = self._store_time
            self._doubt_after((at - before).total_seconds() - (self._runtime.clock.monotonic() - asked_before))
        self._store_time = None if at is None else (at, asked_at)

    def _doubt_after(self, stepped: float) -> None:
        """Doubt leases for as long as one lasts, and ages for an hour, if a clock was set forward."""
        settings, passed = self._runtime.settings, self._runtime.clock.monotonic()
        if stepped <= (settings.lease - settings.renew_every) / 2:
            return
        problem = "leases are given time to be renewed, and for an hour nothing is archived, deleted or closed by time"
        logger.warning("clock_stepped", seconds=round(stepped), problem=problem)
        self._doubts_until = max(self._doubts_until, passed + settings.lease)
        self._distrusts_until = passed + TRUSTED_AFTER

    def doubt_outage(self) -> None:
        """Doubt leases for as long as it takes to renew them: the store was away, perhaps from other workers, too.

        With a store that is always slow, doubt ends after a lease.
        """
        now, settings = self._runtime.clock.monotonic(), self._runtime.settings
        if self._doubt_ends is None:
            self._doubt_ends = now + settings.lease + settings.renew_every
        self._doubts_until = max(self._doubts_until, min(now + settings.renew_every, self._doubt_ends))


class NotDue(TurnwiseError):
    """The chat was changed since it was found, is due by one clock only, or is waited for. Nothing was written."""

    def __init__(self, chat_id: str) -> None:
        super().__init__(
            f"chat {chat_id!r} was changed, is due by the store's clock only, or is a subagent that a chat waits for; "
            "nothing was written"
        )


class Archiving(msgspec.Struct, frozen=True):
    """Archives a chat, unless another one waits for it."""

    change: Change


class Deletion(msgspec.Struct, frozen=True):
    """Deletes a chat, if that is still permitted."""

    permit: Permission


Retained = tuple[str, Archiving | Deletion]
"""A chat, and what is to happen to it."""


async def due_chats(store: ChatStore, settings: Settings, *, as_of: datetime, limit: int) -> list[Retained]:
    """Return chats to archive or delete, up to `limit` of each kind: due by the store's clock and also `as_of`."""
    return [due async for due in _due(store, settings, as_of, limit)]


async def _due(store: ChatStore, settings: Settings, as_of: datetime, limit: int) -> AsyncIterator[Retained]:
    if settings.archive_after is not None:
        for chat_id in await store.rested(archived=False, seconds=settings.archive_after, limit=limit):
            yield chat_id, Archiving(partial(_archive, settings.archive_after, as_of))
    if settings.delete_after is not None:
        for chat_id in await store.rested(archived=True, seconds=settings.delete_after, limit=limit):
            yield chat_id, Deletion(partial(_permit_deletion, settings.delete_after, as_of))


async def check_not_awaited(store: ChatStore, chat_id: str) -> None:
    """Raise `NotDue` if another chat waits for this one: archived, it would never answer."""
    if await is_awaited(store, await store.facts(chat_id)):
        raise NotDue(chat_id)


def _archive(seconds: float, as_of: datetime, unit: UnitOfWork) -> None:
    facts = unit.facts
    if facts.archived or not facts.resting:
        return
    if not _is_unchanged(facts, min(unit.now, as_of), seconds):
        raise NotDue(facts.chat_id)
    unit.fire(Archived(), actor=SYSTEM, reason=f"unchanged for {seconds:g} s")


def _permit_deletion(seconds: float, as_of: datetime, rest: PartialRead, now: datetime) -> None:
    """Permit a deletion as long as the chat is archived and unchanged, or cannot be read."""
    facts = rest.facts
    unchanged = _is_unchanged(facts, min(now, as_of), seconds)
    if not rest.issues and not (facts.archived and facts.resting and unchanged):
        raise NotDue(facts.chat_id)


def _is_unchanged(facts: Facts, now: datetime, seconds: float) -> bool:
    return now - (facts.updated_at or facts.profile.created_at) >= timedelta(seconds=seconds)
