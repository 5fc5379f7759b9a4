"""The budgets of a turn and its context, and whether they are spent."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Final

from turnwise.states.arguments import StepReply
from turnwise.states.budgets import Funds
from turnwise.states.calls import ToolCall
from turnwise.states.facts import Facts, Limits, TurnFacts
from turnwise.states.messages import tokens_in
from turnwise.states.names import CallStatus, StopReason
from turnwise.states.usage import EXACT, Usage

BUDGETS: Final = frozenset(
    {StopReason.max_steps, StopReason.token_budget, StopReason.cost_budget, StopReason.time_budget}
)
"""Why a turn has ended whose budget was spent."""
_ALL: Final = 100
"""Percent."""


def over_threshold(tokens: int | None, limit: int | None, limits: Limits) -> bool:
    """Return whether `tokens` of context reach the threshold; an unknown figure or limit never does."""
    if limit is None:
        limit = limits.context_limit
    if tokens is None or not limit or not compaction_is_on(limits):
        return False
    return tokens * _ALL >= limits.threshold_percent * limit


def wants_compaction(reply: StepReply, limits: Limits) -> bool:
    """Return whether a compaction is due after this reply, by the service's own rule or else the threshold.

    Where compaction is switched off, no rule switches it on.
    """
    if reply.should_compact is not None:
        return reply.should_compact and compaction_is_on(limits)
    return over_threshold(reply.context_tokens, reply.context_limit, limits)


def will_not_fit(facts: Facts, limits: Limits) -> bool:
    """Return whether the next prompt is estimated to exceed the context window, and holds more than one message."""
    compaction = facts.compaction
    limit = limits.context_limit if compaction.context_limit is None else compaction.context_limit
    if not limit or compaction.next_tokens is None or not compaction_is_on(limits):
        return False
    steering = sum(tokens_in(queued.parts) for queued in facts.queue if queued.steers)
    return compaction.next_tokens + steering > limit and facts.history.foldable > 1


def may_compact(facts: Facts, limits: Limits) -> bool:
    """Return whether the step may be compacted: it was not yet, and no compaction of the turn was unproductive."""
    compaction = facts.compaction
    is_over = facts.turn.compacts_no_more or compaction.unproven or compaction.step == facts.step.number
    return not is_over and _has_compactions_left(facts, limits)


def compaction_is_on(limits: Limits) -> bool:
    return limits.context_limit != 0 and limits.threshold_percent < _ALL


def may_make_room(facts: Facts, limits: Limits) -> bool:
    """Return whether there is something to fold, the step was not compacted before, and compaction is not off."""
    compacted = facts.compaction.step == facts.step.number
    may_fold = not compacted and facts.history.foldable > 0 and _has_compactions_left(facts, limits)
    return may_fold and compaction_is_on(limits)


def _has_compactions_left(facts: Facts, limits: Limits) -> bool:
    return limits.max_per_turn is None or facts.turn.compactions < limits.max_per_turn


def why_spent(turn: TurnFacts, limits: Limits, now: datetime) -> StopReason | None:
    """Return the spent budget that keeps the turn from another step; `None` if there is none."""
    if limits.max_steps is not None and turn.steps >= limits.max_steps:
        return StopReason.max_steps
    used, before = turn.spent, turn.spent_before
    if limits.turn_tokens is not None and _tokens(used) - _tokens(before) >= limits.turn_tokens:
        return StopReason.token_budget
    if limits.turn_cost is not None and used.cost is not None:
        most = Decimal(str(limits.turn_cost))  # as it is written: a float of 0.1 is a little more
        if EXACT.subtract(used.cost, before.cost or Decimal(0)) >= most:
            return StopReason.cost_budget
    if limits.turn_seconds is not None and turn.started_at is not None and turn.steps:
        lasted = (now - turn.started_at).total_seconds()
        if lasted - turn.waited >= limits.turn_seconds:
            return StopReason.time_budget
    return None


def shortage_of(facts: Facts, funds: Funds | None) -> StopReason | None:
    """Return which budget of the chat or its owner leaves too little for another model call."""
    short = None if funds is None else funds.shortage(facts.compaction.next_tokens or 0)
    return None if short is None else short[1]


def _tokens(usage: Usage) -> int:
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)


def stop_after_succeeded(calls: Iterable[ToolCall]) -> bool:
    return any(call.stop_after and call.status is CallStatus.succeeded for call in calls)


def answer_accepted(calls: Iterable[ToolCall]) -> bool:
    """Return whether the model has given its answer by a call, in the form that is wanted."""
    return any(call.answers and call.status is CallStatus.succeeded for call in calls)
