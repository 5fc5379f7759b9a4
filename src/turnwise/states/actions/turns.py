"""Actions on turns: how one begins, goes on and ends."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.draft import Draft
from turnwise.states.events import TurnFinishedEvent
from turnwise.states.facts import TurnFacts
from turnwise.states.names import Stage, StopReason, Tail
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.triggers import EditMessage, Resume, SendMessage, Trigger
from turnwise.states.turn_limits import answer_accepted, stop_after_succeeded, why_spent


def start_turn(draft: Draft[SendMessage | EditMessage]) -> None:
    """Begin a new turn, with a fresh budget."""
    asker = draft.trigger.asker if isinstance(draft.trigger, SendMessage) else None
    begin_turn(draft, draft.trigger.trace, asker)


def begin_turn(draft: Draft[Trigger], trace: str | None, asker: str | None) -> None:
    """Begin a new turn with the observers' `trace`, that the chat `asker` has asked for."""
    if draft.turn.open:
        draft.ended = draft.ended or draft.turn
    draft.turn = TurnFacts(
        number=draft.turn.number + 1,
        first_step=draft.step.number + 1,
        after=draft.history.length,
        started_at=draft.now,
        open=True,
        trace=trace,
        asker=asker,
    )
    _leave_step(draft)


def reopen_turn(draft: Draft[Resume]) -> None:
    """Go on with the turn that was stopped, with a fresh budget; what it used so far still counts."""
    draft.turn = TurnFacts(
        number=draft.turn.number,
        first_step=draft.turn.first_step,
        after=draft.turn.after,
        has_results=draft.turn.has_results,
        started_at=draft.now,
        open=True,
        usage=draft.turn.usage,
        subagents_usage=draft.turn.subagents_usage,
        spent_before=draft.turn.spent,
        trace=draft.trigger.trace,
    )
    _leave_step(draft)


def finish_turn(draft: Draft[Trigger]) -> None:
    """Emit `turn_finished`, once per turn and after the change of status: why the turn ended, and its usage.

    However it ended: a turn whose answer was given by a call has its answer, whatever was to run beside it.
    """
    turn = draft.turn
    if not turn.open:
        return
    if answer_accepted(draft.calls):
        draft.history = replace(draft.history, tail=Tail.answered)
    reason = turn.ended_by or StopReason.end_turn
    draft.ended = turn
    draft.turn = replace(turn, open=False)
    draft.stop_reason = reason
    draft.closing.append(
        TurnFinishedEvent(turn=turn.number, stop_reason=reason, provider_reason=turn.provider_reason, usage=turn.usage)
    )


def name_spent_budget(draft: Draft[Trigger]) -> None:
    """Note whether a stop-after tool or a budget ended the turn, unless the model did."""
    if draft.turn.ended_by is None:
        stopped = stop_after_succeeded(draft.calls)
        reason = StopReason.stop_after_tool if stopped else why_spent(draft.turn, draft.limits, draft.now)
        draft.turn = replace(draft.turn, ended_by=reason)


def _leave_step(draft: Draft[Trigger]) -> None:
    draft.step = draft.step.moved_to(Stage.done)
    draft.calls = NO_CALLS
    draft.stop_reason = None
    draft.promote = False
    draft.interrupt_reason = None
    draft.settled = True
