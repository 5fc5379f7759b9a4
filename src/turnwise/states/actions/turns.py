"""Actions on turns: how one begins, goes on and ends."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.actions.compaction import measure_context, publish_compaction
from turnwise.states.draft import Draft
from turnwise.states.errors import WrongCall
from turnwise.states.events import RetryEvent, TurnFinishedEvent
from turnwise.states.facts import Lease, StepFacts, TurnFacts
from turnwise.states.names import Stage, StopReason, Tail
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.triggers import (
    AttemptDiscarded,
    Claimed,
    EditMessage,
    FallbackStarted,
    Resume,
    ScheduleFired,
    SendMessage,
    StepFinished,
    ToolsFinished,
    Trigger,
)
from turnwise.states.turn_limits import answer_accepted, shortage_of, stop_after_succeeded, why_spent
from turnwise.states.usage import Usage
from turnwise.states.writes import GrantLease, NoteFallback


def start_turn(draft: Draft[SendMessage | ScheduleFired | EditMessage]) -> None:
    """Begin a new turn, with a fresh budget."""
    asker = None if isinstance(draft.trigger, EditMessage) else draft.trigger.asker
    begin_turn(draft, draft.trigger.trace, asker)


def begin_turn(draft: Draft[Trigger], trace: str | None, asker: str | None) -> None:
    """Begin a new turn with the observers' `trace`, that the chat `asker` has asked for."""
    if draft.turn.open:
        draft.ended = draft.ended or draft.turn
    draft.ask_first_model()
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
    draft.ask_first_model()
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

    However it ended: a turn whose answer was given by a call has its answer, even if other calls were to run beside it.
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
    draft.unread = draft.profile.parent_call is None
    draft.closing.append(
        TurnFinishedEvent(turn=turn.number, stop_reason=reason, provider_reason=turn.provider_reason, usage=turn.usage)
    )


def name_spent_budget(draft: Draft[Trigger]) -> None:
    """Note whether a stop-after tool or a budget ended the turn, unless the model did."""
    if draft.turn.ended_by is None:
        stopped = stop_after_succeeded(draft.calls)
        reason = StopReason.stop_after_tool if stopped else why_spent(draft.turn, draft.limits, draft.now)
        if reason is None and not isinstance(draft.trigger, StepFinished):
            reason = shortage_of(draft.before, draft.at.funds)
        draft.turn = replace(draft.turn, ended_by=reason)


def _leave_step(draft: Draft[Trigger]) -> None:
    draft.step = draft.step.moved_to(Stage.done)
    draft.calls = NO_CALLS
    draft.stop_reason = None
    draft.promote = False
    draft.interrupt_reason = None
    draft.settled = True


def grant_lease(draft: Draft[Claimed]) -> None:
    """Give the chat to the claiming worker, under a fresh fencing token."""
    draft.fence += 1
    draft.lease = Lease(draft.trigger.worker, draft.fence)
    draft.writes.append(GrantLease(draft.lease, draft.limits.lease))


def drop_lease(draft: Draft[Trigger]) -> None:
    """End the lease."""
    draft.drop_lease()


def begin_step(draft: Draft[Trigger]) -> None:
    """Begin a new step, unless the model still has to answer the last one."""
    if draft.step.stage is Stage.refused:
        draft.step = replace(draft.step, stage=Stage.asking)
    elif draft.step.stage is not Stage.asking:
        draft.step = StepFacts(number=draft.step.number + 1, stage=Stage.asking)
        draft.calls = NO_CALLS
        if not draft.turn.steps and draft.turn.started_at is not None:
            draft.turn = draft.turn.having_waited(since=draft.turn.started_at, until=draft.now)
        draft.turn = replace(draft.turn, steps=draft.turn.steps + 1, ended_by=None)


def start_attempt(draft: Draft[Trigger]) -> None:
    """Number a new attempt; take back the shown parts of one that died."""
    lose_attempt(draft, "the worker that ran it is gone")
    draft.step = replace(draft.step, attempt=draft.step.attempt + 1, attempt_open=True, retry_at=None)
    draft.reserve()
    if draft.step.purpose == "summary":
        publish_compaction(draft, "started")


def start_due_attempt(draft: Draft[Claimed | ToolsFinished]) -> None:
    """Number a new attempt, unless a retry has to wait."""
    if draft.step.retry_at is None:
        start_attempt(draft)


def take_back_attempt(draft: Draft[AttemptDiscarded]) -> None:
    """Take back the parts that the attempt has shown."""
    draft.take_back(draft.trigger.error.kind)


def discard_attempt(draft: Draft[AttemptDiscarded]) -> None:
    """Take back the attempt's shown parts, book its usage, and note when the next attempt may start."""
    failed, step = draft.trigger, draft.step
    if failed.delay is None or failed.retry_at is None:
        missing = "delay" if failed.delay is None else "retry_at"
        raise WrongCall(missing, f"{failed.name} needs it, unless the step waits for room")
    draft.take_back(failed.error.kind)
    draft.book(failed.usage, lost=True)
    draft.left_out = (*draft.left_out, *failed.left_out)
    tried = step.failed(failed.error.kind, paid=failed.paid, timed_out=failed.timed_out, rejected_as=failed.rejected_as)
    if failed.left_out:  # no failure: the next attempt says something else
        tried = replace(step, attempt_open=False)
    draft.step = replace(tried, retry_at=failed.retry_at, retry_delay=failed.delay)
    if failed.from_first:
        draft.ask_first_model()
    draft.events.append(
        RetryEvent(
            step=step.number,
            attempt=step.attempt,
            delay=failed.delay,
            error=failed.error.public,
            retry_at=failed.retry_at,
        )
    )


def fall_back(draft: Draft[FallbackStarted]) -> None:
    """Take back what the model has shown, book its usage, and note why the next one is asked.

    It is no failure of the step, whose retries begin once all models have failed.
    """
    failed, step = draft.trigger, draft.step
    draft.take_back(failed.error.kind)
    draft.book(failed.usage, lost=True)
    draft.step = replace(step, attempt_open=False, paid=step.failed(failed.error.kind, paid=failed.paid).paid)
    draft.turn = replace(draft.turn, fallback_from=(*draft.turn.fallback_from, failed.failure))
    draft.compaction = replace(draft.compaction, context_limit=None)  # it was the other model's
    draft.writes.append(NoteFallback(failed.failure))
    draft.events.append(
        RetryEvent(
            step=step.number,
            attempt=step.attempt,
            delay=0,
            error=failed.error.public,
            retry_at=draft.now,
            next_model=failed.next_model,
        )
    )


def lose_attempt(draft: Draft[Trigger], reason: str, *, usage: Usage | None = None) -> None:
    """End an abandoned attempt: take back its shown parts, and book what is known of its usage."""
    if draft.step.attempt_open:
        draft.take_back(reason)
        draft.book(usage, lost=True)
        draft.step = replace(draft.step, attempt_open=False, lost=draft.step.lost + 1)


def lose_open_attempt(draft: Draft[Trigger]) -> None:
    """End an abandoned attempt, where no budget pays for another one."""
    lose_attempt(draft, "no budget pays for another model call")


def leave_unpaid_call(draft: Draft[Claimed | ToolsFinished]) -> None:
    """End an abandoned attempt, and the step whose answer is still owed, where no budget pays for a model call."""
    lose_open_attempt(draft)
    if draft.step.stage in (Stage.asking, Stage.refused):
        draft.step = draft.step.moved_to(Stage.done)


def commit_reply(draft: Draft[StepFinished]) -> None:
    """Append the assistant message, book its usage, and note how full the context is."""
    reply = draft.trigger.reply
    goes_on = bool(reply.calls) or reply.refused
    tail = Tail.awaits_answer if goes_on else Tail.answered
    if reply.parts:
        draft.append("assistant", reply.parts, tail=tail, reply=reply)
    else:
        draft.history = replace(draft.history, tail=tail)
    draft.book(reply.usage)
    acts = any(call.is_local for call in reply.calls)
    draft.step = draft.step.moved_to(Stage.acting if acts else Stage.done)
    draft.turn = replace(
        draft.turn,
        ended_by=None if goes_on else reply.stop_reason,
        provider_reason=reply.provider_reason,
        refused=draft.turn.refused + reply.refused,
    )
    measure_context(draft)
