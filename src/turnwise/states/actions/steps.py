"""Actions on the model's steps: the lease they run under, their attempts, their replies."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.actions.compaction import measure_context, tell_compaction
from turnwise.states.draft import Draft
from turnwise.states.errors import WrongCall
from turnwise.states.events import RetryEvent
from turnwise.states.facts import Lease, StepFacts
from turnwise.states.names import ChatState, Stage, Tail
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.triggers import AttemptDiscarded, Claimed, StepFinished, Trigger
from turnwise.states.usage import Usage
from turnwise.states.writes import GrantLease


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
    if draft.before.state is ChatState.compacting:
        tell_compaction(draft, "started")


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
    draft.events.append(
        RetryEvent(
            step=step.number,
            attempt=step.attempt,
            delay=failed.delay,
            error=failed.error.public,
            retry_at=failed.retry_at,
        )
    )


def lose_attempt(draft: Draft[Trigger], reason: str, *, usage: Usage | None = None) -> None:
    """End an attempt that nobody will finish: take back its shown parts, and book what is known of its usage."""
    if draft.step.attempt_open:
        draft.take_back(reason)
        draft.book(usage, lost=True)
        draft.step = replace(draft.step, attempt_open=False, lost=draft.step.lost + 1)


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
