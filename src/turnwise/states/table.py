"""The machine: ONE table of rows. Everything else about what a chat may do is derived from it.

A row reads aloud: on this trigger, in this state, when all of `when` hold, the chat goes to that state.
Rows of one trigger and source are ordered: the first whose guards hold is taken, and a row without guards means
"otherwise". Import checks that no row stands behind one that always comes first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from turnwise.states import actions as a
from turnwise.states import guards as g
from turnwise.states import triggers as t
from turnwise.states.draft import Draft
from turnwise.states.names import LEASED, NEW, UNKNOWN, ChatState
from turnwise.states.triggers import Trigger

_Kind = TypeVar("_Kind", bound=Trigger)
_Next = TypeVar("_Next", bound=t.Claimed | t.ToolsFinished)
_End = TypeVar("_End", bound=t.Compacted | t.CompactionFailed)
Guard = Callable[[Draft[_Kind]], bool]
Action = Callable[[Draft[_Kind]], None]


class Row(msgspec.Struct, frozen=True):
    """One thing that may happen. `source` is a state, `NEW` or `UNKNOWN`."""

    trigger: type[Trigger]
    source: str
    target: ChatState
    when: tuple[Guard[Any], ...] = ()
    actions: tuple[Action[Any], ...] = ()


S = ChatState

BUSY: Final = (S.pending, S.streaming, S.executing_tools, S.compacting, S.requires_action)
"""The states in which a chat works (`interrupted`, too, while unsettled)."""

_QUEUED: Final = (*BUSY, S.interrupted, S.error)
"""The states in which messages may be queued."""

_HELD: Final = tuple(state for state in S if state in LEASED)
"""The states in which a worker holds a chat (`interrupted`, too, while unsettled)."""

_REST: Final = (S.waiting, S.requires_action, S.error)
"""The states in which an archived chat may stand (`interrupted` only once settled)."""


def _on(
    kind: type[_Kind],
    source: str,
    target: ChatState,
    *,
    when: tuple[Guard[_Kind], ...] = (),
    do: tuple[Action[_Kind], ...] = (),
) -> Row:
    """Return a row whose guards and actions accept its trigger's class."""
    return Row(kind, source, target, when, do)


def _stay(
    kind: type[_Kind], sources: Iterable[ChatState], action: Action[_Kind], *, when: tuple[Guard[_Kind], ...] = ()
) -> tuple[Row, ...]:
    return tuple(_on(kind, source, source, when=when, do=(action,)) for source in sources)


# fmt: off
_BEGIN   = (a.start_turn, a.append_user_message)
_REWRITE = (a.cut_history, a.clear_queue, a.cancel_open_calls, a.clear_error, *_BEGIN)
_COMMIT  = (a.commit_reply, a.plan_calls)
_FINISH  = (a.name_spent_budget, a.finish_turn)
_NEXT    = (*_FINISH, a.take_queue_head)
_COMPACT = (a.take_back_attempt, a.order_room)
_OVERFLOW = (a.note_compaction_failure, a.set_overflow, a.finish_turn)
_SETTLE  = (a.commit_partial, a.close_open_calls, a.mark_settled, a.finish_turn)
_SETTLE_NEXT = (*_SETTLE, a.take_queue_head)
_FAIL    = (a.commit_partial, a.close_open_calls, a.set_error, a.finish_turn)
_QUEUE_FIRST = (a.enqueue, a.take_queue_head)
_HEAD_FIRST = (a.move_to_head, a.take_queue_head)
_WAIT_FIRST = (a.enqueue_first, a.promote_when_settled)
_WAIT_LAST = (a.enqueue, a.promote_when_settled)
_SEND_NOW = (a.enqueue_first, a.note_interrupt, a.promote_when_settled)
_HEAD_WAITS = (a.move_to_head, a.promote_when_settled)
_HEAD_NOW = (a.move_to_head, a.note_interrupt, a.promote_when_settled)
_CLEAR = (a.insert_clear_boundary,)
_DUE = (g.schedule_is_due,)
_DUE_WITH_ROOM = (g.schedule_is_due, g.queue_has_room)
_GIVE_BACK = (a.lose_open_attempt,)
_TIME_OUT = (a.time_out_due_calls,)
_ASK_AGAIN = (a.begin_step, a.take_steering)
_COMPACTS_AT_REST = (g.something_to_compact, g.queue_is_empty)
_WAKE    = (a.fire_schedule, *_BEGIN)
_WAKE_QUEUE = (a.fire_schedule, *_QUEUE_FIRST)
_REPAIR  = (a.commit_partial, a.close_open_calls, a.restore_invariants, a.set_error, a.finish_turn)

_CLIENT = (
    _on(t.Create, NEW, S.waiting, do=(a.insert_chat,)),

    _on(t.SendMessage, S.waiting,     S.pending,     do=_BEGIN),
    _on(t.SendMessage, S.error,       S.pending,     when=(g.queue_waits,), do=(a.clear_error, *_QUEUE_FIRST)),
    _on(t.SendMessage, S.error,       S.pending,     do=(a.clear_error, *_BEGIN)),
    _on(t.SendMessage, S.interrupted, S.pending,     when=(g.settled, g.queue_waits), do=_QUEUE_FIRST),
    _on(t.SendMessage, S.interrupted, S.pending,     when=(g.settled,), do=_BEGIN),
    _on(t.SendMessage, S.interrupted, S.interrupted, when=(g.wants_interrupt,), do=_WAIT_FIRST),
    _on(t.SendMessage, S.interrupted, S.interrupted, do=_WAIT_LAST),
    *(_on(t.SendMessage, at, S.interrupted, when=(g.wants_interrupt,), do=_SEND_NOW) for at in BUSY),
    *(_on(t.SendMessage, at, at,            do=(a.enqueue,)) for at in BUSY),

    _on(t.SubmitToolResults, S.requires_action, S.requires_action, when=(g.awaits_more,), do=(a.record_results,)),
    _on(t.SubmitToolResults, S.requires_action, S.pending,         do=(a.record_results,)),

    *(_on(t.Interrupt, at, S.interrupted, do=(a.note_interrupt,)) for at in BUSY),
    _on(t.Interrupt, S.interrupted, S.interrupted, when=(g.unsettled, g.promotion_waits), do=(a.note_interrupt,)),

    _on(t.Resume, S.waiting,     S.pending, when=(g.history_unfinished,), do=(a.reopen_turn,)),
    _on(t.Resume, S.interrupted, S.pending, when=(g.settled, g.queue_waits), do=(a.take_queue_head,)),
    _on(t.Resume, S.interrupted, S.pending, when=(g.settled, g.history_unfinished), do=(a.reopen_turn,)),
    _on(t.Resume, S.error,       S.pending, when=(g.queue_waits,), do=(a.clear_error, a.take_queue_head)),
    _on(t.Resume, S.error,       S.pending, when=(g.history_unfinished,), do=(a.clear_error, a.reopen_turn)),

    *(_on(t.EditMessage, at, S.pending, when=(g.something_said,), do=_REWRITE) for at in (S.waiting, *_QUEUED)),

    _on(t.RequestCompaction, S.waiting,     S.pending, when=(g.something_to_compact,), do=(a.order_compaction,)),
    _on(t.RequestCompaction, S.error,       S.pending, when=_COMPACTS_AT_REST, do=(a.clear_error, a.order_compaction)),
    _on(t.RequestCompaction, S.interrupted, S.pending, when=(g.settled, *_COMPACTS_AT_REST), do=(a.order_compaction,)),

    _on(t.ClearContext, S.waiting,     S.waiting, do=_CLEAR),
    _on(t.ClearContext, S.error,       S.waiting, when=(g.queue_is_empty,), do=(a.clear_error, *_CLEAR)),
    _on(t.ClearContext, S.interrupted, S.waiting, when=(g.settled, g.queue_is_empty), do=_CLEAR),

    *_stay(t.Schedule,   S, a.put_schedule),
    *_stay(t.Unschedule, S, a.remove_schedule, when=(g.something_scheduled,)),

    *_stay(t.EditQueued,   _QUEUED, a.change_queued, when=(g.queue_waits,)),
    *_stay(t.DeleteQueued, _QUEUED, a.remove_queued, when=(g.queue_waits,)),
    *(_on(t.PromoteQueued, at, S.interrupted, when=(g.queue_waits,), do=_HEAD_NOW) for at in BUSY),
    _on(t.PromoteQueued, S.interrupted, S.pending,     when=(g.settled, g.queue_waits), do=_HEAD_FIRST),
    _on(t.PromoteQueued, S.interrupted, S.interrupted, when=(g.queue_waits,), do=_HEAD_WAITS),
    _on(t.PromoteQueued, S.error,       S.pending,     when=(g.queue_waits,), do=(a.clear_error, *_HEAD_FIRST)),
)


def _after_compaction(kind: type[_End], outcome: Action[_End]) -> tuple[Row, ...]:
    return (
        _on(kind, S.compacting, S.requires_action, when=(g.outside_calls_open,), do=(outcome, a.ask_client)),
        _on(kind, S.compacting, S.streaming,       when=(g.turn_goes_on,), do=(outcome, *_ASK_AGAIN)),
        _on(kind, S.compacting, S.pending,         when=(g.queue_waits,), do=(outcome, *_NEXT)),
        _on(kind, S.compacting, S.waiting,         do=(outcome, *_FINISH)),
    )


def _between_steps(
    kind: type[_Next],
    source: ChatState,
    *,
    when: tuple[Guard[_Next], ...] = (),
    do: tuple[Action[_Next], ...] = (),
    hold: tuple[Action[_Next], ...] = (),
) -> tuple[Row, ...]:
    """Return the ladder of a turn that stands between two steps; `hold` is done where a worker holds the chat then."""
    over = (*do, a.leave_unpaid_call)
    fold = (*do, *hold, a.start_due_attempt)
    room = (*do, *hold, a.owe_compaction, a.start_due_attempt)
    step = (*do, *hold, a.begin_step, a.start_due_attempt, a.take_steering)
    return (
        _on(kind, source, S.compacting,      when=(*when, g.compaction_due, g.call_affordable), do=fold),
        _on(kind, source, S.requires_action, when=(*when, g.outside_calls_open), do=(*over, a.ask_client)),
        _on(kind, source, S.pending,         when=(*when, g.turn_over, g.queue_waits), do=(*over, *_NEXT)),
        _on(kind, source, S.waiting,         when=(*when, g.turn_over), do=(*over, *_FINISH)),
        _on(kind, source, S.compacting,      when=(*when, g.prompt_will_not_fit), do=room),
        _on(kind, source, S.streaming,       when=when, do=step),
    )


_HOLDER = (
    _on(t.Claimed, S.pending, S.executing_tools, when=(g.tools_unfinished,), do=(a.grant_lease,)),
    *_between_steps(t.Claimed, S.pending, hold=(a.grant_lease,)),
    _on(t.Claimed, S.interrupted, S.interrupted, when=(g.unsettled, g.unleased), do=(a.grant_lease,)),

    _on(t.AttemptStarted, S.streaming,  S.pending, when=(g.budget_short,), do=_GIVE_BACK),
    _on(t.AttemptStarted, S.compacting, S.pending, when=(g.budget_short,), do=_GIVE_BACK),
    _on(t.AttemptStarted, S.streaming, S.streaming, do=(a.start_attempt, a.take_steering)),
    *_stay(t.AttemptStarted,   (S.compacting,), a.start_attempt),
    *_stay(t.AttemptDiscarded, (S.compacting,), a.discard_attempt),
    _on(t.AttemptDiscarded, S.streaming, S.streaming,  when=(g.prompt_fits,), do=(a.discard_attempt,)),
    _on(t.AttemptDiscarded, S.streaming, S.compacting, when=(g.room_can_be_made,), do=_COMPACT),

    *_stay(t.FallbackStarted, (S.streaming, S.compacting), a.fall_back, when=(g.next_model_waits,)),

    _on(t.StepFinished, S.streaming, S.executing_tools, when=(g.has_local_calls,), do=_COMMIT),
    _on(t.StepFinished, S.streaming, S.compacting,      when=(g.compaction_due,), do=_COMMIT),
    _on(t.StepFinished, S.streaming, S.requires_action, when=(g.has_outside_calls,), do=(*_COMMIT, a.ask_client)),
    _on(t.StepFinished, S.streaming, S.streaming,       when=(g.answer_refused,), do=(*_COMMIT, *_ASK_AGAIN)),
    _on(t.StepFinished, S.streaming, S.pending,         when=(g.queue_waits,), do=(*_COMMIT, *_NEXT)),
    _on(t.StepFinished, S.streaming, S.waiting,         do=(*_COMMIT, *_FINISH)),

    *_stay(t.CallStarted,  (S.executing_tools,), a.start_call,  when=(g.call_may_start,)),
    *_stay(t.CallFinished, (S.executing_tools,), a.finish_call, when=(g.call_lacks_result,)),

    *_between_steps(t.ToolsFinished, S.executing_tools, when=(g.local_calls_done,), do=(a.conclude_tools,)),

    *_after_compaction(t.Compacted, a.commit_boundary),
    _on(t.CompactionFailed, S.compacting, S.error, when=(g.prompt_refused,), do=_OVERFLOW),
    *_after_compaction(t.CompactionFailed, a.note_compaction_failure),

    _on(t.Settled, S.interrupted, S.pending,     when=(g.unsettled, g.promotion_waits), do=_SETTLE_NEXT),
    _on(t.Settled, S.interrupted, S.interrupted, when=(g.unsettled,), do=_SETTLE),

    *(_on(t.Released, at, S.pending, do=(a.give_up_started_calls,)) for at in (S.streaming, S.executing_tools)),
    _on(t.Released, S.compacting, S.pending, do=(a.give_up_summary,)),
    _on(t.Released, S.interrupted, S.interrupted, when=(g.unsettled, g.leased), do=(a.drop_lease,)),

    *(_on(t.Failed, at, S.error, do=_FAIL) for at in (S.pending, *_HELD)),
    _on(t.Failed, S.interrupted, S.error, when=(g.unsettled,), do=_FAIL),
)

_CLOCK = (
    *(_on(t.LeaseExpired, at, S.pending, do=(a.give_up_started_calls,)) for at in _HELD),
    _on(t.LeaseExpired, S.interrupted, S.interrupted, when=(g.unsettled, g.leased), do=(a.drop_lease,)),

    _on(t.DeadlinePassed, S.requires_action, S.pending, when=(g.call_is_due, g.every_call_is_due), do=_TIME_OUT),
    _on(t.DeadlinePassed, S.requires_action, S.requires_action, when=(g.call_is_due,), do=_TIME_OUT),

    _on(t.ScheduleFired, S.waiting,     S.pending, when=_DUE, do=_WAKE),
    _on(t.ScheduleFired, S.error,       S.pending, when=(*_DUE, g.queue_waits), do=(a.clear_error, *_WAKE_QUEUE)),
    _on(t.ScheduleFired, S.error,       S.pending, when=_DUE, do=(a.clear_error, *_WAKE)),
    _on(t.ScheduleFired, S.interrupted, S.pending, when=(*_DUE, g.settled, g.queue_waits), do=_WAKE_QUEUE),
    _on(t.ScheduleFired, S.interrupted, S.pending, when=(*_DUE, g.settled), do=_WAKE),
    *_stay(t.ScheduleFired, (*BUSY, S.interrupted), a.fire_schedule, when=(*_DUE, g.is_skipped)),
    _on(t.ScheduleFired, S.interrupted, S.interrupted, when=_DUE_WITH_ROOM, do=(a.fire_schedule, *_WAIT_LAST)),
    *(_on(t.ScheduleFired, at, at, when=_DUE_WITH_ROOM, do=(a.fire_schedule, a.enqueue)) for at in BUSY),

    _on(t.Repaired, UNKNOWN, S.error, do=_REPAIR),
    *(_on(t.Repaired, at, S.error, when=(g.invariant_broken,), do=_REPAIR) for at in S),
)

_ADMINISTRATION = (
    *_stay(t.Archived,   (S.waiting, S.error),   a.mark_archived),
    *_stay(t.Archived,   (S.requires_action,),   a.mark_archived, when=(g.client_awaited,)),
    *_stay(t.Archived,   (S.interrupted,),       a.mark_archived, when=(g.settled,)),
    *_stay(t.Unarchived, _REST,            a.unmark_archived, when=(g.archived,)),
    *_stay(t.Unarchived, (S.interrupted,), a.unmark_archived, when=(g.archived, g.settled)),
    *_stay(t.Renamed,          S, a.change_title),
    *_stay(t.MetadataChanged, S, a.change_metadata),
    *_stay(t.MarkedRead,      S, a.mark_read),
    *_stay(t.Configured,      S, a.change_configuration),
    *_stay(t.MessageErased,   S, a.erase_content),
    *(_on(t.Imported, at, at) for at in S),
)
# fmt: on

TABLE: Final[tuple[Row, ...]] = (*_CLIENT, *_HOLDER, *_CLOCK, *_ADMINISTRATION)
"""Every transition there is."""


def rows_of(trigger: type[Trigger], source: str) -> tuple[Row, ...]:
    """Return the rows for a trigger in a state, in the table's order."""
    return _ROWS.get((trigger, source), ())


def triggers_in(source: str) -> tuple[type[Trigger], ...]:
    """Return the triggers that have a row in a state, in the order of their declaration."""
    return tuple(trigger for trigger in t.TRIGGERS.values() if (trigger, source) in _ROWS)


def _by_place(rows: Iterable[Row]) -> dict[tuple[type[Trigger], str], tuple[Row, ...]]:
    by_place: dict[tuple[type[Trigger], str], tuple[Row, ...]] = {}
    for row in rows:
        by_place[row.trigger, row.source] = (*by_place.get((row.trigger, row.source), ()), row)
    return by_place


def check(rows: Iterable[Row]) -> None:
    """Check a table: every place exists, no row is out of reach, and `_TOTAL` ladders end in a row without guards.

    Raises:
        ValueError: names the rows that are wrong.
    """
    rows = tuple(rows)
    places = {*ChatState, NEW, UNKNOWN}
    for row in rows:
        if row.source not in places or row.target not in places - {NEW, UNKNOWN}:
            raise ValueError(f"row {row.trigger.name} in {row.source} goes to {row.target}: not a declared state")
    for (trigger, source), ladder in _by_place(rows).items():
        for one, other in itertools.combinations(ladder, 2):
            if set(one.when) <= set(other.when):
                raise ValueError(f"row {trigger.name} in {source} to {other.target} stands behind one that comes first")
        if trigger in _TOTAL and source != S.interrupted and ladder[-1].when:
            raise ValueError(f"rows {trigger.name} in {source} must end in one without guards")


_TOTAL: Final = (t.SendMessage, t.SubmitToolResults, t.Claimed, t.StepFinished, t.Compacted, t.CompactionFailed)
"""The triggers that a chat must not refuse for want of a row, except while an interrupt is settled."""
_ROWS: Final = _by_place(TABLE)
check(TABLE)
