"""Writes about the model's steps: the lease they run under, their attempts, their replies."""

from __future__ import annotations

import dataclasses

from turnwise.states.draft import Draft
from turnwise.states.effects import GrantLease
from turnwise.states.events import AttemptDiscardedEvent, RetryEvent
from turnwise.states.facts import Lease, StepFacts
from turnwise.states.names import ChatState, Stage, Tail
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.writes.compaction import measure_context, tell_compaction


def grant_lease(draft: Draft) -> None:
    """Give the chat to the claiming worker, under a fresh fencing token."""
    token = draft.before.fence + 1
    draft.lease = Lease(draft.arguments["worker"], token)
    draft.set(fence=token)
    draft.writes.append(GrantLease(draft.lease, draft.limits.lease))


def drop_lease(draft: Draft) -> None:
    """End the lease."""
    draft.drop_lease()


def begin_step(draft: Draft) -> None:
    """Begin a new step, unless the last one has still to be answered by the model."""
    if draft.step.stage is Stage.refused:
        draft.step = dataclasses.replace(draft.step, stage=Stage.asking)
    elif draft.step.stage is not Stage.asking:
        draft.step = StepFacts(number=draft.step.number + 1, stage=Stage.asking)
        draft.calls = NO_CALLS
        draft.turn = dataclasses.replace(draft.turn, steps=draft.turn.steps + 1, ended_by=None)


def start_attempt(draft: Draft) -> None:
    """Number a new attempt; take back what an attempt that died had shown."""
    lose_attempt(draft, "the worker that ran it is gone")
    draft.step = dataclasses.replace(draft.step, attempt=draft.step.attempt + 1, attempt_open=True, retry_at=None)
    if draft.before.state is ChatState.compacting:
        tell_compaction(draft, "started")


def take_back_attempt(draft: Draft) -> None:
    """Take back what the attempt had shown."""
    _take_back(draft, draft.arguments["error"].kind)


def discard_attempt(draft: Draft) -> None:
    """Take back what the attempt had shown, book its usage, and note when the next one may start."""
    arguments, step = draft.arguments, draft.step
    error, retry_at = arguments["error"], arguments["retry_at"]
    _take_back(draft, error.kind)
    draft.book(arguments.get("usage"), lost=True)
    draft.step = dataclasses.replace(
        step,
        attempt_open=False,
        failures=step.failures + 1,
        broken=step.broken + arguments.get("opened", False),
        startup_timeouts=step.startup_timeouts + 1 if error.kind == "startup_timeout" else 0,
        retry_at=retry_at,
        retry_delay=arguments["delay"],
    )
    draft.events.append(
        RetryEvent(step=step.number, attempt=step.attempt, delay=arguments["delay"], error=error, retry_at=retry_at)
    )


def lose_attempt(draft: Draft, reason: str) -> None:
    """End an attempt that nobody will finish: what it had shown is taken back, what it used is unknown."""
    if draft.step.attempt_open:
        _take_back(draft, reason)
        draft.book(None, lost=True)
        draft.step = dataclasses.replace(draft.step, attempt_open=False)


def commit_reply(draft: Draft) -> None:
    """Append the assistant message, book its usage, and note how full the context is."""
    reply = draft.arguments["reply"]
    tail = Tail.awaits_answer if reply.calls else Tail.answered
    if reply.parts:
        draft.append("assistant", reply.parts, tail=tail, reply=reply)
    else:
        draft.history = dataclasses.replace(draft.history, tail=tail)
    draft.book(reply.usage)
    acts = any(call.is_local for call in reply.calls)
    draft.step = StepFacts(
        number=draft.step.number,
        stage=Stage.acting if acts else Stage.done,
        attempt=draft.step.attempt,
    )
    draft.turn = dataclasses.replace(
        draft.turn,
        ended_by=None if reply.calls else reply.stop_reason,
        provider_reason=reply.provider_reason,
    )
    measure_context(draft)


def _take_back(draft: Draft, reason: str) -> None:
    step = draft.step
    if step.attempt_open and step.stage is Stage.asking:
        draft.events.append(AttemptDiscardedEvent(step=step.number, attempt=step.attempt, reason=reason))
