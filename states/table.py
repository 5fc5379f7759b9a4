"""The machine: ONE table of rows. Everything else about what a chat may do is derived from it.

A row reads aloud: on this trigger, in this state, when all of `when` hold and none of `unless`, the chat goes to that
state and these actions are taken. No two rows of a (trigger, source) can match the same facts: of any two, one requires
(`when`) what the other excludes (`unless`). That is checked when this module is imported.
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
from turnwise.states.facts import Facts
from turnwise.states.names import NEW, UNKNOWN, ChatState, Trigger
from turnwise.states.triggers import Circumstances, Occurrence

_Kind = TypeVar("_Kind", bound=Occurrence)
_End = TypeVar("_End", bound=t.Compacted | t.CompactionFailed)
Guard = Callable[[Facts, _Kind, Circumstances], bool]
Action = Callable[[Draft[_Kind]], None]


class Row(msgspec.Struct, frozen=True):
    """One thing that may happen. `source` is a state, `NEW` or `UNKNOWN`."""

    trigger: Trigger
    source: str
    target: ChatState
    when: tuple[Guard[Any], ...] = ()
    unless: tuple[Guard[Any], ...] = ()
    actions: tuple[Action[Any], ...] = ()

    def excludes(self, other: Row) -> bool:
        """Whether no facts can match both rows."""
        return bool(set(self.when) & set(other.unless) or set(other.when) & set(self.unless))


S = ChatState

BUSY: Final = (S.pending, S.streaming, S.executing_tools, S.compacting, S.requires_action)
"""The states in which a chat works (`interrupted`, too, while unsettled)."""

_QUEUED: Final = (*BUSY, S.interrupted, S.error)
"""The states in which messages may be queued."""

_REST: Final = (S.waiting, S.requires_action, S.error)
"""The states in which an archived chat may stand (`interrupted` only once settled)."""


def _on(
    kind: type[_Kind],
    source: str,
    target: ChatState,
    *,
    when: tuple[Guard[_Kind], ...] = (),
    unless: tuple[Guard[_Kind], ...] = (),
    actions: tuple[Action[_Kind], ...] = (),
) -> Row:
    """Return a row whose guards and actions accept its trigger's class."""
    return Row(kind.trigger, source, target, when, unless, actions)


def _stay(
    kind: type[_Kind], sources: Iterable[ChatState], action: Action[_Kind], *, when: tuple[Guard[_Kind], ...] = ()
) -> tuple[Row, ...]:
    return tuple(_on(kind, source, source, when=when, actions=(action,)) for source in sources)


# fmt: off
_BEGIN   = (a.start_turn, a.append_user_message)
_REWRITE = (a.cut_history, a.clear_queue, a.cancel_open_calls, a.clear_error, *_BEGIN)
_COMMIT  = (a.commit_reply, a.plan_calls)
_FINISH = (a.name_spent_budget, a.finish_turn)
_SETTLE  = (a.commit_partial, a.close_open_calls, a.mark_settled, a.finish_turn)
_FAIL    = (a.commit_partial, a.close_open_calls, a.set_error, a.finish_turn)
_REPAIR  = (a.commit_partial, a.close_open_calls, a.restore_promises, a.set_error, a.finish_turn)

_CLIENT = (
    _on(t.Create, NEW, S.waiting, actions=(a.insert_chat,)),

    _on(t.SendMessage, S.waiting,     S.pending,     actions=_BEGIN),
    _on(t.SendMessage, S.error,       S.pending,     unless=(g.queue_waits,), actions=(a.clear_error, *_BEGIN)),
    _on(t.SendMessage, S.error,       S.pending,     when=(g.queue_waits,), actions=(a.clear_error, a.enqueue_last, a.take_queue_head)),
    _on(t.SendMessage, S.interrupted, S.pending,     when=(g.settled,), unless=(g.queue_waits,), actions=_BEGIN),
    _on(t.SendMessage, S.interrupted, S.pending,     when=(g.settled, g.queue_waits), actions=(a.enqueue_last, a.take_queue_head)),
    _on(t.SendMessage, S.interrupted, S.interrupted, unless=(g.settled, g.wants_interrupt), actions=(a.enqueue_last, a.promote_when_settled)),
    _on(t.SendMessage, S.interrupted, S.interrupted, when=(g.wants_interrupt,), unless=(g.settled,), actions=(a.enqueue_first, a.promote_when_settled)),
    *(_on(t.SendMessage, at, at,            unless=(g.wants_interrupt,), actions=(a.enqueue_last,)) for at in BUSY),
    *(_on(t.SendMessage, at, S.interrupted, when=(g.wants_interrupt,), actions=(a.enqueue_first, a.note_interrupt, a.promote_when_settled)) for at in BUSY),

    _on(t.SubmitToolResults, S.requires_action, S.pending,         unless=(g.awaits_more,), actions=(a.record_results,)),
    _on(t.SubmitToolResults, S.requires_action, S.requires_action, when=(g.awaits_more,), actions=(a.record_results,)),

    *(_on(t.Interrupt, at, S.interrupted, actions=(a.note_interrupt,)) for at in BUSY),
    _on(t.Interrupt, S.interrupted, S.interrupted, when=(g.promotion_waits,), unless=(g.settled,), actions=(a.note_interrupt,)),

    _on(t.Resume, S.interrupted, S.pending, when=(g.settled, g.queue_waits), actions=(a.take_queue_head,)),
    _on(t.Resume, S.interrupted, S.pending, when=(g.settled, g.history_unfinished), unless=(g.queue_waits,), actions=(a.reopen_turn,)),
    _on(t.Resume, S.waiting,     S.pending, when=(g.history_unfinished,), actions=(a.reopen_turn,)),
    _on(t.Resume, S.error,       S.pending, when=(g.queue_waits,), actions=(a.clear_error, a.take_queue_head)),
    _on(t.Resume, S.error,       S.pending, when=(g.history_unfinished,), unless=(g.queue_waits,), actions=(a.clear_error, a.reopen_turn)),

    *(_on(t.EditMessage, at,      S.pending, when=(g.something_said,), actions=_REWRITE) for at in (S.waiting, *BUSY, S.error, S.interrupted)),

    _on(t.RequestCompaction, S.waiting,     S.pending, when=(g.something_to_compact,), actions=(a.order_compaction,)),
    _on(t.RequestCompaction, S.error,       S.pending, when=(g.something_to_compact,), unless=(g.queue_waits,), actions=(a.clear_error, a.order_compaction)),
    _on(t.RequestCompaction, S.interrupted, S.pending, when=(g.settled, g.something_to_compact), unless=(g.queue_waits,), actions=(a.order_compaction,)),

    _on(t.ClearContext, S.waiting,     S.waiting, actions=(a.insert_clear_boundary,)),
    _on(t.ClearContext, S.error,       S.waiting, unless=(g.queue_waits,), actions=(a.clear_error, a.insert_clear_boundary)),
    _on(t.ClearContext, S.interrupted, S.waiting, when=(g.settled,), unless=(g.queue_waits,), actions=(a.insert_clear_boundary,)),

    *_stay(t.EditQueued,   _QUEUED, a.change_queued, when=(g.queue_waits,)),
    *_stay(t.DeleteQueued, _QUEUED, a.remove_queued, when=(g.queue_waits,)),
    *(_on(t.PromoteQueued, at,        S.interrupted, when=(g.queue_waits,), actions=(a.move_to_head, a.note_interrupt, a.promote_when_settled)) for at in BUSY),
    _on(t.PromoteQueued, S.interrupted, S.interrupted, when=(g.queue_waits,), unless=(g.settled,), actions=(a.move_to_head, a.promote_when_settled)),
    _on(t.PromoteQueued, S.interrupted, S.pending,     when=(g.queue_waits, g.settled), actions=(a.move_to_head, a.take_queue_head)),
    _on(t.PromoteQueued, S.error,       S.pending,     when=(g.queue_waits,), actions=(a.clear_error, a.move_to_head, a.take_queue_head)),
)


def _after_compaction(kind: type[_End], outcome: Action[_End], *, unless: tuple[Guard[_End], ...] = ()) -> tuple[Row, ...]:
    return (
        _on(kind, S.compacting, S.requires_action, when=(g.outside_calls_open,), unless=unless, actions=(outcome, a.ask_client)),
        _on(kind, S.compacting, S.streaming,       when=(g.turn_goes_on,), unless=(*unless, g.outside_calls_open), actions=(outcome, a.begin_step)),
        _on(kind, S.compacting, S.pending,         when=(g.queue_waits,), unless=(*unless, g.outside_calls_open, g.turn_goes_on), actions=(outcome, *_FINISH, a.take_queue_head)),
        _on(kind, S.compacting, S.waiting,         unless=(*unless, g.outside_calls_open, g.turn_goes_on, g.queue_waits), actions=(outcome, *_FINISH)),
    )


_HOLDER = (
    _on(t.Claimed, S.pending, S.executing_tools, when=(g.tools_unfinished,), actions=(a.grant_lease,)),
    _on(t.Claimed, S.pending, S.compacting,      when=(g.compaction_due,), unless=(g.tools_unfinished,), actions=(a.grant_lease,)),
    _on(t.Claimed, S.pending, S.requires_action, when=(g.outside_calls_open,), unless=(g.tools_unfinished, g.compaction_due), actions=(a.ask_client,)),
    _on(t.Claimed, S.pending, S.pending,         when=(g.turn_over, g.queue_waits), unless=(g.tools_unfinished, g.compaction_due, g.outside_calls_open), actions=(*_FINISH, a.take_queue_head)),
    _on(t.Claimed, S.pending, S.waiting,         when=(g.turn_over,), unless=(g.tools_unfinished, g.compaction_due, g.outside_calls_open, g.queue_waits), actions=_FINISH),
    _on(t.Claimed, S.pending, S.streaming,       unless=(g.tools_unfinished, g.compaction_due, g.outside_calls_open, g.turn_over), actions=(a.grant_lease, a.begin_step)),
    _on(t.Claimed, S.interrupted, S.interrupted, when=(g.unleased,), unless=(g.settled,), actions=(a.grant_lease,)),

    *_stay(t.AttemptStarted,   (S.streaming, S.compacting), a.start_attempt),
    *_stay(t.AttemptDiscarded, (S.compacting,), a.discard_attempt),
    _on(t.AttemptDiscarded, S.streaming, S.streaming,  unless=(g.prompt_too_long,), actions=(a.discard_attempt,)),
    _on(t.AttemptDiscarded, S.streaming, S.compacting, when=(g.prompt_too_long, g.room_can_be_made), actions=(a.take_back_attempt, a.order_room)),

    _on(t.StepFinished, S.streaming, S.executing_tools, when=(g.has_local_calls,), actions=_COMMIT),
    _on(t.StepFinished, S.streaming, S.compacting,      when=(g.compaction_due,), unless=(g.has_local_calls,), actions=_COMMIT),
    _on(t.StepFinished, S.streaming, S.requires_action, when=(g.has_outside_calls,), unless=(g.has_local_calls, g.compaction_due), actions=(*_COMMIT, a.ask_client)),
    _on(t.StepFinished, S.streaming, S.streaming,       when=(g.answer_refused,), unless=(g.has_local_calls, g.compaction_due, g.has_outside_calls), actions=(*_COMMIT, a.begin_step)),
    _on(t.StepFinished, S.streaming, S.pending,         when=(g.queue_waits,), unless=(g.has_local_calls, g.compaction_due, g.has_outside_calls, g.answer_refused), actions=(*_COMMIT, *_FINISH, a.take_queue_head)),
    _on(t.StepFinished, S.streaming, S.waiting,         unless=(g.has_local_calls, g.compaction_due, g.has_outside_calls, g.answer_refused, g.queue_waits), actions=(*_COMMIT, *_FINISH)),

    *_stay(t.CallStarted,  (S.executing_tools,), a.start_call,  when=(g.call_may_start,)),
    *_stay(t.CallFinished, (S.executing_tools,), a.finish_call, when=(g.call_lacks_result,)),

    _on(t.ToolsFinished, S.executing_tools, S.compacting,      when=(g.compaction_due,), unless=(g.local_calls_open,), actions=(a.conclude_tools,)),
    _on(t.ToolsFinished, S.executing_tools, S.requires_action, when=(g.outside_calls_open,), unless=(g.local_calls_open, g.compaction_due), actions=(a.conclude_tools, a.ask_client)),
    _on(t.ToolsFinished, S.executing_tools, S.pending,         when=(g.turn_over, g.queue_waits), unless=(g.local_calls_open, g.compaction_due, g.outside_calls_open), actions=(a.conclude_tools, *_FINISH, a.take_queue_head)),
    _on(t.ToolsFinished, S.executing_tools, S.waiting,         when=(g.turn_over,), unless=(g.local_calls_open, g.compaction_due, g.outside_calls_open, g.queue_waits), actions=(a.conclude_tools, *_FINISH)),
    _on(t.ToolsFinished, S.executing_tools, S.streaming,       unless=(g.local_calls_open, g.compaction_due, g.outside_calls_open, g.turn_over), actions=(a.conclude_tools, a.begin_step)),

    *_after_compaction(t.Compacted, a.commit_boundary),
    *_after_compaction(t.CompactionFailed, a.note_compaction_failure, unless=(g.prompt_refused,)),
    _on(t.CompactionFailed, S.compacting, S.error, when=(g.prompt_refused,), actions=(a.note_compaction_failure, a.set_overflow, a.finish_turn)),

    _on(t.Settled, S.interrupted, S.pending,     when=(g.promotion_waits,), unless=(g.settled,), actions=(*_SETTLE, a.take_queue_head)),
    _on(t.Settled, S.interrupted, S.interrupted, unless=(g.settled, g.promotion_waits), actions=_SETTLE),

    *(_on(t.Released, at, S.pending, actions=(a.give_up_started_calls,)) for at in (S.streaming, S.executing_tools)),
    _on(t.Released, S.compacting, S.pending, actions=(a.give_up_summary,)),
    _on(t.Released, S.interrupted, S.interrupted, unless=(g.settled, g.unleased), actions=(a.drop_lease,)),

    *(_on(t.Failed, at, S.error, actions=_FAIL) for at in (S.pending, S.streaming, S.executing_tools, S.compacting)),
    _on(t.Failed, S.interrupted, S.error, unless=(g.settled,), actions=_FAIL),
)

_CLOCK = (
    *(_on(t.LeaseExpired, at, S.pending, actions=(a.give_up_started_calls,)) for at in (S.streaming, S.executing_tools, S.compacting)),
    _on(t.LeaseExpired, S.interrupted, S.interrupted, unless=(g.settled, g.unleased), actions=(a.drop_lease,)),

    _on(t.DeadlinePassed, S.requires_action, S.pending,         when=(g.call_is_due, g.every_call_is_due), actions=(a.time_out_due_calls,)),
    _on(t.DeadlinePassed, S.requires_action, S.requires_action, when=(g.call_is_due,), unless=(g.every_call_is_due,), actions=(a.time_out_due_calls,)),

    _on(t.Repaired, UNKNOWN, S.error, actions=_REPAIR),
    *(_on(t.Repaired, at, S.error, when=(g.promise_broken,), actions=_REPAIR) for at in S),
)

_ADMINISTRATION = (
    *_stay(t.Archived,   (S.waiting, S.error),   a.mark_archived),
    *_stay(t.Archived,   (S.requires_action,),   a.mark_archived, when=(g.client_awaited,)),
    *_stay(t.Archived,   (S.interrupted,),       a.mark_archived, when=(g.settled,)),
    *_stay(t.Unarchived, _REST,            a.unmark_archived, when=(g.archived,)),
    *_stay(t.Unarchived, (S.interrupted,), a.unmark_archived, when=(g.archived, g.settled)),
    *_stay(t.Renamed,          S, a.change_title),
    *_stay(t.MetadataChanged, S, a.change_metadata),
    *_stay(t.Configured,      S, a.change_configuration),
    *_stay(t.MessageErased,   S, a.erase_content),
    *(_on(t.Imported, at, at) for at in S),
)
# fmt: on

TABLE: Final[tuple[Row, ...]] = (*_CLIENT, *_HOLDER, *_CLOCK, *_ADMINISTRATION)
"""Every transition there is."""


def rows_of(trigger: Trigger, source: str) -> tuple[Row, ...]:
    """Return the rows for a trigger in a state, in the table's order."""
    return _ROWS.get((trigger, source), ())


def triggers_in(source: str) -> tuple[Trigger, ...]:
    """Return the triggers that have a row in a state, in the order of their declaration."""
    return tuple(trigger for trigger in Trigger if (trigger, source) in _ROWS)


def _by_place(rows: Iterable[Row]) -> dict[tuple[Trigger, str], tuple[Row, ...]]:
    by_place: dict[tuple[Trigger, str], tuple[Row, ...]] = {}
    for row in rows:
        by_place[row.trigger, row.source] = (*by_place.get((row.trigger, row.source), ()), row)
    return by_place


def check(rows: Iterable[Row]) -> None:
    """Check a table: every place exists and no two rows can match the same facts.

    Raises:
        ValueError: names the rows that are wrong.
    """
    rows = tuple(rows)
    places = {*ChatState, NEW, UNKNOWN}
    for row in rows:
        if row.source not in places or row.target not in places - {NEW, UNKNOWN}:
            raise ValueError(f"row {row.trigger} in {row.source} goes to {row.target}: not a declared state")
    for (trigger, source), alike in _by_place(rows).items():
        for one, other in itertools.combinations(alike, 2):
            if not one.excludes(other):
                raise ValueError(f"rows {trigger} in {source} to {one.target} and to {other.target} can both match")


_ROWS: Final = _by_place(TABLE)
check(TABLE)
