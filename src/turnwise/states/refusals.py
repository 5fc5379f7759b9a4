"""Refusals: bad input and lost leases, recognised before the table is asked, each with its own error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from turnwise.states import errors
from turnwise.states import triggers as t
from turnwise.states.draft import Draft
from turnwise.states.messages import size_of, tokens_in
from turnwise.states.names import WORKER, ChatState, StopReason
from turnwise.states.values.digests import canonical
from turnwise.states.writes import PutProfile

OfQueued = t.EditQueued | t.DeleteQueued | t.PromoteQueued
SCHEDULED_BYTES: Final = 65_536
"""The most bytes that the scheduled messages of a chat may hold together; files that are stored count as references."""
_Kind = TypeVar("_Kind", bound=t.Trigger)
Refusal = Callable[[Draft[_Kind]], None]


def refuse_dead_token(draft: Draft[t.Held]) -> None:
    """Refuse a holder whose lease is gone. The worker counts, too: a database that went back grants tokens twice."""
    current = draft.lease.token if draft.lease else None
    if draft.trigger.token != current or _is_of_another_worker(draft):
        raise errors.StaleLease(draft.before.chat_id, draft.trigger.token, current)


def _is_of_another_worker(draft: Draft[t.Held]) -> bool:
    named = draft.at.actor.startswith(WORKER) and draft.trigger.party == "lease holder"
    return named and draft.lease is not None and draft.at.actor != f"{WORKER}{draft.lease.worker}"


def refuse_when_busy(draft: Draft[t.SendMessage]) -> None:
    """Refuse a message that must not wait, or for which the queue has no room."""
    if draft.before.resting and draft.before.state is not ChatState.requires_action:
        return
    when_busy, limit = draft.trigger.when_busy, draft.limits.queue_limit
    if when_busy == "reject":
        raise errors.ChatBusy(draft.before.state)
    if when_busy != "interrupt" and len(draft.queue) >= limit:
        raise errors.QueueFull(limit)


def refuse_full_queue(draft: Draft[t.SendMessage | t.EditQueued]) -> None:
    """Refuse what would make the messages that wait larger than they may be all together."""
    staying = draft.queue
    if isinstance(draft.trigger, t.EditQueued):
        staying = tuple(queued for queued in staying if queued.id != draft.trigger.queued_id)
    elif draft.before.resting and draft.before.state is not ChatState.requires_action:
        if not staying:
            return  # the message becomes a turn at once
        staying = staying[1:]
    limit = draft.limits.queue_limit_bytes
    if size_of(draft.trigger.parts) + sum(size_of(queued.parts) for queued in staying) > limit:
        raise errors.QueueFull(limit, "bytes")


def refuse_spent_budget(draft: Draft[t.Trigger]) -> None:
    """Refuse what asks for a model call that a budget of the chat or its owner does not pay in this period."""
    funds, prompt = draft.at.funds, (draft.compaction.next_tokens or 0) + tokens_in(getattr(draft.trigger, "parts", ()))
    spent = None if funds is None else funds.spent(prompt)
    if spent is not None:
        until, unit = spent[0].until, "cost" if spent[1] is StopReason.cost_budget else "tokens"
        seconds = None if until is None else (until - draft.now).total_seconds()
        raise errors.BudgetSpent(until, unit=unit, retry_after=seconds)


def refuse_mismatch(draft: Draft[t.SubmitToolResults]) -> None:
    """Refuse answers that are not exactly those to the open client calls, or a subagent's to another's call."""
    answers = Counter(result.call_id for result in draft.trigger.results)
    if not draft.trigger.subagents:
        wanted = [call.call_id for call in draft.before.open_calls if call.is_client]
    else:
        wanted = [call.call_id for call in draft.before.open_calls if call.is_delegated and call.call_id in answers]
    missing = [call_id for call_id in wanted if call_id not in answers]
    extra = [call_id for call_id in answers if call_id not in wanted]
    duplicate = [call_id for call_id, count in answers.items() if count > 1]
    if missing or extra or duplicate or not answers:
        raise errors.ToolResultMismatch(missing, extra, duplicate)


def refuse_late_results(draft: Draft[t.SubmitToolResults]) -> None:
    """Refuse an answer to a call whose deadline has passed, even if no worker has noticed that yet."""
    answered_ids = {result.call_id for result in draft.trigger.results}
    late = [call.call_id for call in draft.calls if call.call_id in answered_ids and call.is_due(draft.now)]
    if late:
        raise errors.DeadlineExpired(late)


def refuse_unclear_approval(draft: Draft[t.SubmitToolResults]) -> None:
    """Refuse an answer that neither allows nor denies a call for approval, or has unchecked edited arguments."""
    names = {call.call_id: call.name for call in draft.before.open_calls if call.approval == "asked"}
    for result in draft.trigger.results:
        if result.call_id not in names:
            continue
        if result.approval_problem is not None:
            raise errors.InvalidContent(f"call {result.call_id!r} asks for approval: {result.approval_problem}")
        if result.edits is not None and result.call_id not in draft.trigger.edited:
            raise errors.InvalidContent(
                f"the edited arguments of call {result.call_id!r} cannot be checked: this engine has no tool named "
                f"{names[result.call_id]!r}; submit to one that has"
            )


def refuse_unknown_queued(draft: Draft[OfQueued]) -> None:
    if all(queued.id != draft.trigger.queued_id for queued in draft.queue):
        raise errors.MessageNotFound(draft.before.chat_id, draft.trigger.queued_id, expected="queued message")


def refuse_unknown_schedule(draft: Draft[t.Unschedule]) -> None:
    if all(message.id != draft.trigger.schedule_id for message in draft.schedules):
        raise errors.MessageNotFound(draft.before.chat_id, draft.trigger.schedule_id, expected="scheduled message")


def refuse_full_schedules(draft: Draft[t.Schedule]) -> None:
    """Refuse more scheduled messages, or larger ones, than a chat may have: they are stored with every transition."""
    message, limit = draft.trigger.message, draft.limits.schedule_limit
    messages = [*(other for other in draft.schedules if other.id != message.id), message]
    if len(messages) > limit:
        raise errors.QueueFull(limit, "scheduled messages")
    if sum(size_of(one.parts) for one in messages) > SCHEDULED_BYTES:
        raise errors.QueueFull(SCHEDULED_BYTES, "bytes of scheduled messages")


def refuse_empty_compaction(draft: Draft[t.Trigger]) -> None:
    if not draft.history.foldable:
        raise errors.NothingToCompact(draft.before.chat_id)


def refuse_unstorable_profile(draft: Draft[t.Create]) -> None:
    _ = PutProfile(draft.trigger.profile).body


def _unstorable(*fields: str) -> Refusal[t.Trigger]:
    """Return what refuses a trigger whose fields of these names cannot be written as JSON."""

    def refuse(draft: Draft[t.Trigger]) -> None:
        canonical([getattr(draft.trigger, field) for field in fields])

    return refuse


def _of(kind: type[_Kind], *refusals: Refusal[_Kind]) -> tuple[type[t.Trigger], tuple[Refusal[Any], ...]]:
    return kind, refusals


REFUSALS: Final[dict[type[t.Trigger], tuple[Refusal[Any], ...]]] = {
    **{kind: (refuse_dead_token,) if issubclass(kind, t.Held) else () for kind in t.TRIGGERS.values()},
    **dict(
        (
            _of(t.Create, refuse_unstorable_profile),
            _of(t.SendMessage, refuse_when_busy, refuse_full_queue, refuse_spent_budget),
            _of(t.SubmitToolResults, refuse_late_results, refuse_mismatch, refuse_unclear_approval),
            _of(t.Resume, refuse_spent_budget),
            _of(t.EditMessage, refuse_spent_budget),
            _of(t.RequestCompaction, refuse_empty_compaction, refuse_spent_budget),
            _of(t.EditQueued, refuse_unknown_queued, refuse_full_queue),
            _of(t.DeleteQueued, refuse_unknown_queued),
            _of(t.PromoteQueued, refuse_unknown_queued),
            _of(t.Schedule, refuse_full_schedules),
            _of(t.Unschedule, refuse_unknown_schedule),
            _of(t.ScheduleFired, refuse_spent_budget),
            _of(t.Renamed, _unstorable("title")),
            _of(t.MetadataChanged, _unstorable("metadata")),
            _of(t.Configured, _unstorable("agent", "model", "parameters", "active_tools", "system")),
        )
    ),
}
"""The refusals of each trigger. All of them leave the chat as it was."""
