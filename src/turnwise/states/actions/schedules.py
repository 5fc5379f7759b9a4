"""Actions on schedules: messages that the clock sends."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.draft import Draft
from turnwise.states.triggers import Schedule, ScheduleFired, Trigger, Unschedule
from turnwise.states.writes import DropSchedule, FireSchedule, PutSchedule


def put_schedule(draft: Draft[Schedule]) -> None:
    """Add a scheduled message, or replace the one of its id."""
    message = replace(draft.trigger.message, by=draft.at.actor)
    others = (other for other in draft.schedules if other.id != message.id)
    draft.schedules = (*others, message)
    draft.writes.append(PutSchedule(message))


def remove_schedule(draft: Draft[Unschedule]) -> None:
    """Cancel a scheduled message."""
    _drop(draft, draft.trigger.schedule_id)


def clear_schedules(draft: Draft[Trigger]) -> None:
    """Take back all that is scheduled."""
    for message in draft.schedules:
        _drop(draft, message.id)


def fire_schedule(draft: Draft[ScheduleFired]) -> None:
    """Note that a scheduled message was due, and when the series goes on. What is sent once is scheduled no more."""
    fired, due = draft.trigger.message, draft.trigger.next_due
    draft.writes.append(FireSchedule(fired.id, fired.due))
    if due is None:
        _drop(draft, fired.id)
    else:
        draft.schedules = tuple(replace(one, due=due) if one.id == fired.id else one for one in draft.schedules)


def _drop(draft: Draft[Trigger], schedule_id: str) -> None:
    draft.schedules = tuple(message for message in draft.schedules if message.id != schedule_id)
    draft.writes.append(DropSchedule(schedule_id))
