"""Schedules: computes when messages are due, and fires the triggers that send them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Self

import msgspec
from cronsim import CronSim, CronSimError

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.blobs.streams import parts_within
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.states.errors import BudgetSpent, IllegalTransition, InvalidArgument
from turnwise.states.messages import Content, Part, ScheduledMessage
from turnwise.states.names import WhenDue
from turnwise.states.triggers import Schedule, ScheduleFired
from turnwise.time_zones import time_zone

_FIELDS: Final = 5
_LONGEST: Final = 200
"""Characters of a cron expression."""
_EXPRESSION: Final = "must be a cron expression of five fields, as in '0 9 * * 1', that comes true within 50 years"
_AT: Final = "must have an offset from UTC, as in 2027-01-31T09:00:00+01:00, or come with a timezone"


class Times(msgspec.Struct, frozen=True):
    """When a message is to be sent: once, `at` a time in UTC, or at the times of a cron expression in a time zone."""

    at: datetime | None
    every: str | None
    timezone: str | None

    @classmethod
    def of(cls, at: datetime | None, every: str | None, timezone: str | None) -> Self:
        if (at is None) == (every is None):
            raise InvalidArgument("at", "give either `at` or `every`, not both")
        name = "UTC" if timezone is None else timezone
        zone = time_zone(name)
        if at is None:
            return cls(None, every, name)
        if at.utcoffset() is None:
            if timezone is None:
                raise InvalidArgument("at", f"{_AT}; it was {at.isoformat()}")
            at = at.replace(tzinfo=zone)
        try:
            return cls(at.astimezone(UTC), None, timezone)
        except OverflowError:
            raise InvalidArgument(
                "at", f"must be between the years 1 and 9999 in UTC; it was {at.isoformat()}"
            ) from None

    def after(self, now: datetime) -> datetime | None:
        """Return the first time of a series after `now`, in UTC; `None` for a message that is sent once.

        Times that daylight saving skips or repeats come once, as in cron: right after the gap, or at the first.
        """
        if self.every is None:
            return None
        if len(self.every) > _LONGEST or len(self.every.split()) != _FIELDS:
            raise _misfit("every", _EXPRESSION, self.every)
        try:
            times = CronSim(self.every, now.astimezone(time_zone(self.timezone or "UTC")))
            return next(due for due in (one.astimezone(UTC) for one in times) if due > now)
        except (CronSimError, StopIteration):
            raise _misfit("every", _EXPRESSION, self.every) from None


def _misfit(argument: str, wanted: str, found: str) -> InvalidArgument:
    return InvalidArgument(argument, f"{wanted}; it was {found[:_LONGEST]!r}")


class Scheduling(msgspec.Struct, frozen=True):
    """Schedules a message, under an id of its own unless one is given."""

    parts: tuple[Part, ...]
    times: Times
    when_busy: WhenDue
    id: str | None

    def __call__(self, unit: UnitOfWork) -> None:
        due = self.times.after(unit.now) or self.times.at
        message = ScheduledMessage(
            id=self.id or f"s{unit.facts.version + 1}",
            parts=self.parts,
            due=unit.now if due is None else max(due, unit.now),
            every=self.times.every,
            timezone=self.times.timezone,
            when_busy=self.when_busy,
        )
        unit.fire(Schedule(message=message))


class Scheduler(msgspec.Struct, frozen=True):
    """Schedules messages of a chat on behalf of `actor`."""

    runtime: Runtime
    chat_id: str
    actor: str

    async def __call__(
        self,
        content: Content,
        *,
        at: datetime | None = None,
        every: str | None = None,
        timezone: str | None = None,
        when_busy: WhenDue = "queue",
        id: str | None = None,  # noqa: A002 - the contract
    ) -> ScheduledMessage:
        parts, times = parts_within(self.runtime.settings, content), Times.of(at, every, timezone)
        async with Sending(self.runtime.files, self.chat_id) as sending:
            scheduling = Scheduling(await sending.store_parts(parts), times, when_busy, id)
            committed = await self.runtime.writer.commit(self.chat_id, scheduling, actor=self.actor)
        return committed.decisions[0].facts.schedules[-1]


def fire_due(unit: UnitOfWork) -> None:
    """Send the due messages, in the order of their times; a series that was missed several times is sent once.

    Messages stay due while the queue is full, a budget is spent, or this machine does not know their time zone.
    """
    due = sorted((one for one in unit.facts.schedules if one.due <= unit.now), key=lambda one: one.due)
    fired: list[ScheduleFired] = []
    unknown: InvalidArgument | None = None
    for one in due:
        try:
            fired.append(ScheduleFired(message=one, next_due=_next_due(one, unit.now)))
        except InvalidArgument as error:
            unknown = error
    for trigger in fired:
        with suppress(IllegalTransition, BudgetSpent):
            unit.fire(trigger)
    if fired and not unit.decisions:
        unit.fire(fired[0])
    if unknown is not None and not unit.decisions:
        raise unknown


def _next_due(message: ScheduledMessage, now: datetime) -> datetime | None:
    if message.every is not None:
        time_zone(message.timezone or "UTC")
    try:
        return Times(None, message.every, message.timezone).after(now)
    except InvalidArgument:  # its last time has come
        return None
