"""Explains the state of a chat, its next timer, and why it is not moving."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import msgspec

from turnwise.engine.admin.diagnose import advice_on, summary_of
from turnwise.engine.admin.progress import Progress, words_of_time
from turnwise.engine.agents.delegate import SUBAGENTS, subagent_id
from turnwise.engine.config.results import Budget
from turnwise.engine.worker.identity import is_dead
from turnwise.persistence.reading import Expiry
from turnwise.persistence.shares import ReachedCap
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.states import triggers as t
from turnwise.states.budgets import Amount
from turnwise.states.calls import ToolCall
from turnwise.states.decide import legal_triggers
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.invariants import broken_invariants
from turnwise.states.messages import ScheduledMessage
from turnwise.states.names import LEASED, SPECS, CallStatus, ChatState, StopReason
from turnwise.states.table import BUSY
from turnwise.states.turn_limits import BUDGETS
from turnwise.states.values.values import Value

_AS_WISHED: Final = (StopReason.end_turn, StopReason.stop_after_tool)
"""Stop reasons after which a turn is complete, even if it could go on."""


class Explanation(Value, frozen=True, kw_only=True):
    """The state of a chat, for an operator."""

    chat_id: str
    """The chat's id."""
    state: ChatState
    """The state of the chat."""
    since: datetime | None
    """When the chat came into this state."""
    agent: str
    """The agent that a worker must have to continue the chat."""
    tools_needed: tuple[str, ...]
    """The tools that the worker must have for the open local calls."""
    lease_worker: str | None
    """The worker that holds the chat; `None` if none does."""
    lease_expires: datetime | None
    """When the lease of that worker ends."""
    next_timer: datetime | None
    """When the next timer of the chat runs out: a retry, a deadline, its lease, or the time of a scheduled message."""
    open_calls: tuple[ToolCall, ...]
    """The calls of the current step that have no result yet."""
    queued: int
    """Messages that wait in the queue."""
    schedules: tuple[ScheduledMessage, ...] = ()
    """The scheduled messages, the next one first."""
    last_error: ErrorInfo | None
    """Why the last turn failed."""
    legal_triggers: tuple[str, ...]
    """The triggers that the chat accepts now."""
    broken_invariants: tuple[str, ...]
    """Conditions of its state that do not hold: a defect. Empty for a sound chat."""
    budgets: tuple[Budget, ...] = ()
    """The budgets that the chat spends: its own, and its owner's."""
    unreadable: tuple[IntegrityIssue, ...] = ()
    """The stored values that cannot be read: each place, as `table.column`, with the problem."""
    reason: str
    """One sentence: why the chat is not moving, or what it is doing."""


class Circumstances(msgspec.Struct, frozen=True):
    """Facts of other chats and workers that explain a chat."""

    archived: Collection[str] = ()
    """The archived subagents among those it waits for."""
    cap: ReachedCap | None = None
    """The cap for which a pending chat has to wait."""
    budgets: Sequence[Budget] = ()
    """The budgets that the chat spends."""
    progress: Progress = Progress()


def explanation(
    facts: Facts,
    lease: Expiry | None,
    around: Circumstances = Circumstances(),  # noqa: B008 - a frozen value
    *,
    issues: Sequence[IntegrityIssue] = (),
) -> Explanation:
    """Return the explanation of a chat; if it has issues, of its readable part. Times are by the store's clock."""
    reason = _reason(facts, lease, around, issues) if around.cap is None else around.cap.sentence
    timers = [
        *(call.deadline for call in facts.open_calls if call.deadline is not None),
        *([facts.step.retry_at] if facts.step.retry_at is not None and facts.state in LEASED else []),
        *([facts.wake_at] if facts.wake_at is not None else []),
        *([lease.expires] if lease is not None else []),
    ]
    return Explanation(
        chat_id=facts.chat_id,
        state=facts.state,
        since=facts.since,
        agent=facts.agent_needed,
        tools_needed=facts.calls.needs,
        lease_worker=facts.lease.worker if facts.lease else None,
        lease_expires=lease.expires if lease is not None else None,
        next_timer=min(timers, default=None),
        open_calls=tuple(call.shown for call in facts.open_calls),
        queued=len(facts.queue),
        schedules=tuple(sorted(facts.schedules, key=lambda message: message.due)),
        last_error=facts.last_error,
        legal_triggers=legal_triggers(facts),
        broken_invariants=broken_invariants(facts),
        budgets=tuple(around.budgets),
        unreadable=tuple(issues),
        reason=f"{reason}{_spent(facts, around.budgets)}{_undelivered(around.progress)}",
    )


def _is_spent(budget: Budget) -> bool:
    return budget.left.tokens == 0 or budget.left.cost == 0


def _spent(facts: Facts, budgets: Sequence[Budget]) -> str:
    """Return a sentence for each budget that may have ended the turn, or leaves nothing for a next one.

    A budget with nothing spent or reserved has stopped no turn: its period started again.
    """
    stopped = facts.stop_reason in (StopReason.token_budget, StopReason.cost_budget)
    used = [one for one in budgets if one.spent + one.reserved != Amount() or _is_spent(one)]
    return "".join(_describe_budget(one) for one in used if stopped or _is_spent(one))


def _undelivered(progress: Progress) -> str:
    return "".join(
        f" {count} event(s) of the chat were not delivered to {name!r}: see `turnwise undelivered {name}`."
        for name, count in progress.undelivered
    )


def _describe_budget(budget: Budget) -> str:
    whose = f"owner {budget.owner!r}" if budget.owner is not None else "the chat"
    tokens = None if budget.tokens is None else f"{budget.left.tokens:,} of {budget.tokens:,} tokens"
    cost = None if budget.cost is None else f"{budget.left.cost} of {budget.cost} US dollars"
    until = f" until {budget.until:%Y-%m-%d %H:%M} UTC" if budget.until is not None else ""
    unpriced = (
        f", without {budget.unpriced} call(s) of unknown price" if budget.unpriced and budget.cost is not None else ""
    )
    reserved = f", {budget.reserved.tokens:,} tokens are reserved" if budget.reserved.tokens else ""
    left = " and ".join(filter(None, (tokens, cost)))
    return f" The budget of {whose} has {left} left{until}{reserved}{unpriced}; an operator may raise it."


def _reason(facts: Facts, lease: Expiry | None, around: Circumstances, issues: Sequence[IntegrityIssue]) -> str:
    if issues:
        what = summary_of(issues)
        return f"Something stored of the chat cannot be read: {what}. What can be done: {advice_on(issues)}."
    if facts.archived:
        return "The chat is archived; unarchive it to go on."
    reason = (
        _held(facts, facts.lease.worker, lease, around.progress)
        if facts.lease is not None
        else _resting(facts, around) + _describe_wakeup(facts)
    )
    steering = sum(queued.steers for queued in facts.queue) if facts.state in BUSY else 0
    return f"{reason} {steering} message(s) that steer the turn enter its next request." if steering else reason


def _resting(facts: Facts, around: Circumstances) -> str:
    may_resume = t.Resume.name in legal_triggers(facts)
    match facts.state:
        case ChatState.waiting:
            return _waiting(facts.stop_reason if may_resume else StopReason.end_turn, around.budgets)
        case ChatState.requires_action:
            return _awaiting_others(facts, around)
        case ChatState.error:
            return f"The chat cannot go on without the user: {_problem(facts.last_error).removesuffix('.')}."
        case ChatState.interrupted:
            return _explain_interrupt(facts, may_resume=may_resume)
        case ChatState.pending:
            return (
                f"There is work to do: the chat waits for a worker that runs {_describe_worker(facts)}; is one running?"
            )
    return SPECS[facts.state].sentence


def _describe_wakeup(facts: Facts) -> str:
    if facts.wake_at is None:
        return ""
    first = min(facts.schedules, key=lambda message: message.due)
    return f" Schedule {first.id!r} of {first.by} sends a message at {first.due:%Y-%m-%d %H:%M:%S} UTC."


def _explain_interrupt(facts: Facts, *, may_resume: bool) -> str:
    if not facts.settled:
        return "The interrupt waits to be settled by a worker with any agents; is one running, with room?"
    waits = f" {len(facts.queue)} queued message(s) wait;" if facts.queue else ""
    resume = " resume it or" if may_resume else ""
    return f"The user said stop;{waits}{resume} send a message to go on."


def _problem(error: ErrorInfo | None) -> str:
    if error is None or error.message_id is None:
        return error.message if error is not None else "an unknown error"
    ways = "edit or erase it, clear the context, or configure another model"
    return f"{error.message.removesuffix('.')}. The provider does not take message {error.message_id!r}: {ways}"


def _waiting(stop_reason: StopReason | None, budgets: Sequence[Budget]) -> str:
    if stop_reason in BUDGETS:
        if any(map(_is_spent, budgets)):
            return f"The turn was stopped, as a budget is spent ({stop_reason}): resume it once there is more."
        return f"The turn has spent its budget ({stop_reason}): resume it to go on with a new one."
    if stop_reason in _AS_WISHED:
        return SPECS[ChatState.waiting].sentence
    return "The last message has no answer: resume the chat to get it, or send another message."


def _describe_worker(facts: Facts) -> str:
    tools = ", ".join(map(repr, facts.calls.needs))
    having = f" with tool{'s' if len(facts.calls.needs) > 1 else ''} {tools}" if tools else ""
    return f"agent {facts.agent_needed!r}{having}"


def _awaiting_others(facts: Facts, around: Circumstances) -> str:
    subagents = ", ".join(_describe_subagents(facts, call) for call in facts.open_calls if call.is_delegated)
    theirs = "".join(f" Subagent {one.chat_id} waits for {_answers_of(one)}." for one in around.progress.subagents)
    lost = "".join(f" Subagent {name} is archived: unarchive it to go on." for name in sorted(around.archived))
    answers = _answers_of(facts)
    if not answers:
        return f"Waiting for subagents: {subagents}.{theirs}{lost}"
    others = f" Waiting for subagents, too: {subagents}." if subagents else ""
    return f"The chat waits for {answers}.{others}{theirs}{lost}"


def _answers_of(facts: Facts) -> str:
    """Return the answers of people and clients that a chat waits for, with the deadline; empty without any."""
    calls = [call for call in facts.open_calls if call.is_client]
    approvals = [
        f"the approval of {call.name} by an {call.approver} ({call.call_id})"
        for call in calls
        if call.approval == "asked"
    ]
    results = ", ".join(f"{call.name} ({call.call_id})" for call in calls if call.approval != "asked")
    deadlines = [call.deadline for call in calls if call.deadline is not None]
    until = f", until {words_of_time(min(deadlines))}" if deadlines else ""
    return " and ".join([*approvals, *([f"the client's results of {results}"] if results else [])]) + until


def _describe_subagents(facts: Facts, call: ToolCall) -> str:
    if call.subagent is not None:
        return f"{subagent_id(facts.chat_id, call.call_id)} (agent {call.subagent!r})"
    names = call.arguments.get(SUBAGENTS, facts.background)
    return f"{call.name} of {', '.join(map(str, names)) or 'none'}"


def _held(facts: Facts, worker: str, lease: Expiry | None, progress: Progress) -> str:
    if is_dead(worker):
        return f"Worker {worker} holds the chat, but its process is dead: any worker of this machine takes over."
    if lease is not None and lease.is_over:
        ago = (lease.now - lease.expires).total_seconds()
        return f"The lease of worker {worker} ran out {ago:.0f} s ago: it is dead or cut off; any worker may take over."
    at = facts.step.retry_at
    if lease is not None and at is not None and at > lease.now:
        wait = (at - lease.now).total_seconds()
        day = "" if at.date() == lease.now.date() else f"{at:%Y-%m-%d} "
        return (
            f"In back-off: the model call failed {facts.step.failures} time(s) in a row; "
            f"next attempt in {wait:.0f} s, at {day}{at:%H:%M:%S} UTC."
        )
    local = [call for call in facts.open_calls if call.is_local]
    running = ", ".join(call.described for call in progress.calls) or ", ".join(
        call.name for call in local if call.status is CallStatus.started
    )
    attempted = "" if progress.attempt is None else f" ({progress.attempt.described})"
    doing = {
        ChatState.streaming: f"The request of step {facts.step.number} is being made, or the model is answering it, "
        f"attempt {facts.step.attempt}{_instead_of(facts)}{attempted}",
        ChatState.executing_tools: f"Tools are running: {running}"
        if running
        else f"Tools run as soon as the chat's deps are open: {', '.join(call.name for call in local)}",
    }
    spec = SPECS[facts.state]
    otherwise = "The chat is held" if spec.job is None else spec.sentence.rstrip(".")
    return f"{doing.get(facts.state, otherwise)}; worker {worker} holds the chat."


def _instead_of(facts: Facts) -> str:
    """Return the agent's models that have failed in the turn, each with the kind of its failure."""
    failed = [f"{one.provider}:{one.model} ({one.kind})" for one in facts.turn.fallback_from]
    return f", asked instead of {', '.join(failed)}" if failed else ""
