"""Refusals: bad input and lost leases, recognised before the table is asked, each with its own error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from turnwise.states import errors
from turnwise.states import triggers as t
from turnwise.states.digests import canonical
from turnwise.states.facts import Facts
from turnwise.states.messages import size_of
from turnwise.states.names import ChatState, Trigger
from turnwise.states.writes import PutProfile

OfQueued = t.EditQueued | t.DeleteQueued | t.PromoteQueued
_Kind = TypeVar("_Kind", bound=t.Occurrence)
Refusal = Callable[[Facts, _Kind, t.Circumstances], None]


def refuse_dead_token(facts: Facts, occurrence: t.Held, at: t.Circumstances) -> None:
    """Refuse a holder whose lease is gone."""
    current = facts.lease.token if facts.lease else None
    if occurrence.token != current:
        raise errors.StaleLease(facts.chat_id, occurrence.token, current)


def refuse_when_busy(facts: Facts, occurrence: t.SendMessage, at: t.Circumstances) -> None:
    """Refuse a message that must not wait, or for which the queue has no room."""
    if facts.resting and facts.state is not ChatState.requires_action:
        return
    when_busy, limit = occurrence.when_busy, at.limits.queue_limit
    if when_busy == "reject":
        raise errors.ChatBusy(facts.state)
    if when_busy == "queue" and len(facts.queue) >= limit:
        raise errors.QueueFull(limit)


def refuse_full_queue(facts: Facts, occurrence: t.SendMessage | t.EditQueued, at: t.Circumstances) -> None:
    """Refuse what would make the messages that wait larger than they may be all together."""
    staying = facts.queue
    if isinstance(occurrence, t.EditQueued):
        staying = tuple(queued for queued in staying if queued.id != occurrence.queued_id)
    elif facts.resting and facts.state is not ChatState.requires_action:
        if not staying:
            return  # the message becomes a turn at once
        staying = staying[1:]
    limit = at.limits.queue_limit_bytes
    if size_of(occurrence.parts) + sum(size_of(queued.parts) for queued in staying) > limit:
        raise errors.QueueFull(limit, "bytes")


def refuse_mismatch(facts: Facts, occurrence: t.SubmitToolResults, at: t.Circumstances) -> None:
    """Refuse a submission that does not name exactly the open client calls, or a helper's that names another's call."""
    answers = Counter(result.call_id for result in occurrence.results)
    if not occurrence.helpers:
        wanted = [call.call_id for call in facts.open_calls if call.is_client]
    else:
        wanted = [call.call_id for call in facts.open_calls if call.is_delegated and call.call_id in answers]
    missing = [call_id for call_id in wanted if call_id not in answers]
    extra = [call_id for call_id in answers if call_id not in wanted]
    duplicate = [call_id for call_id, count in answers.items() if count > 1]
    if missing or extra or duplicate or not answers:
        raise errors.ToolResultMismatch(missing, extra, duplicate)


def refuse_late_results(facts: Facts, occurrence: t.SubmitToolResults, at: t.Circumstances) -> None:
    """Refuse an answer to a call whose deadline has passed, even if no worker has noticed that yet."""
    answered_ids = {result.call_id for result in occurrence.results}
    late = [call.call_id for call in facts.calls if call.call_id in answered_ids and call.is_due(at.now)]
    if late:
        raise errors.DeadlineExpired(late)


def refuse_unclear_approval(facts: Facts, occurrence: t.SubmitToolResults, at: t.Circumstances) -> None:
    """Refuse an answer that neither allows nor denies a call for approval, or has unchecked edited arguments."""
    names = {call.call_id: call.name for call in facts.open_calls if call.approval == "asked"}
    for result in occurrence.results:
        if result.call_id not in names:
            continue
        if result.approval_problem is not None:
            raise errors.InvalidContent(f"call {result.call_id!r} asks for approval: {result.approval_problem}")
        if result.edits is not None and result.call_id not in occurrence.edited:
            raise errors.InvalidContent(
                f"the edited arguments of call {result.call_id!r} cannot be checked: this engine has no tool named "
                f"{names[result.call_id]!r}; submit to one that has"
            )


def refuse_unknown_queued(facts: Facts, occurrence: OfQueued, at: t.Circumstances) -> None:
    """Refuse to touch a message that is not in the queue."""
    if all(queued.id != occurrence.queued_id for queued in facts.queue):
        raise errors.MessageNotFound(facts.chat_id, occurrence.queued_id, expected="queued message")


def refuse_empty_compaction(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> None:
    """Refuse to compact nothing."""
    if not facts.history.foldable:
        raise errors.NothingToCompact(facts.chat_id)


def refuse_unstorable_profile(facts: Facts, occurrence: t.Create, at: t.Circumstances) -> None:
    """Refuse a profile that cannot be written as JSON."""
    _ = PutProfile(occurrence.profile).digest


def refuse_unstorable_title(facts: Facts, occurrence: t.Renamed, at: t.Circumstances) -> None:
    """Refuse a title that cannot be written as JSON."""
    canonical(occurrence.title)


def refuse_unstorable_metadata(facts: Facts, occurrence: t.MetadataChanged, at: t.Circumstances) -> None:
    """Refuse metadata that cannot be written as JSON."""
    canonical(occurrence.metadata)


def refuse_unstorable_configuration(facts: Facts, occurrence: t.Configured, at: t.Circumstances) -> None:
    """Refuse a configuration that cannot be written as JSON."""
    canonical([occurrence.agent, occurrence.model, occurrence.parameters, occurrence.active_tools, occurrence.system])


def _of(kind: type[_Kind], *refusals: Refusal[_Kind]) -> tuple[Trigger, tuple[Refusal[Any], ...]]:
    return kind.trigger, refusals


REFUSALS: Final[dict[Trigger, tuple[Refusal[Any], ...]]] = {
    **{trigger: (refuse_dead_token,) if issubclass(kind, t.Held) else () for trigger, kind in t.OCCURRENCES.items()},
    **dict(
        (
            _of(t.Create, refuse_unstorable_profile),
            _of(t.SendMessage, refuse_when_busy, refuse_full_queue),
            _of(t.SubmitToolResults, refuse_late_results, refuse_mismatch, refuse_unclear_approval),
            _of(t.RequestCompaction, refuse_empty_compaction),
            _of(t.EditQueued, refuse_unknown_queued, refuse_full_queue),
            _of(t.DeleteQueued, refuse_unknown_queued),
            _of(t.PromoteQueued, refuse_unknown_queued),
            _of(t.Renamed, refuse_unstorable_title),
            _of(t.MetadataChanged, refuse_unstorable_metadata),
            _of(t.Configured, refuse_unstorable_configuration),
        )
    ),
}
"""The refusals of each trigger. All of them leave the chat as it was."""
