"""Refusals: bad input and lost leases, recognised before the table is asked and answered with a typed error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from turnwise.states.arguments import Arguments
from turnwise.states.digests import canonical
from turnwise.states.effects import PutProfile
from turnwise.states.errors import (
    ChatArchived,
    ChatBusy,
    DeadlineExpired,
    InvalidContent,
    MessageNotFound,
    NothingToCompact,
    QueueFull,
    StaleLease,
    ToolResultMismatch,
)
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState, Trigger

Refusal = Callable[[Facts, Arguments], None]


def refuse_archived(facts: Facts, arguments: Arguments) -> None:
    """Refuse everything but `unarchived` on an archived chat."""
    if facts.archived:
        raise ChatArchived(facts.chat_id)


def refuse_dead_token(facts: Facts, arguments: Arguments) -> None:
    """Refuse a holder whose lease is gone."""
    token = arguments.get("token")
    current = facts.lease.token if facts.lease else None
    if token != current:
        raise StaleLease(facts.chat_id, token, current)


def refuse_when_busy(facts: Facts, arguments: Arguments) -> None:
    """Refuse a message that must not wait, and one for which the queue has no room."""
    if facts.resting and facts.state is not ChatState.requires_action:
        return
    when_busy, limit = arguments.get("when_busy", "queue"), arguments["limits"].queue_limit
    if when_busy == "reject":
        raise ChatBusy(facts.state)
    if when_busy == "queue" and len(facts.queue) >= limit:
        raise QueueFull(limit)


def refuse_mismatch(facts: Facts, arguments: Arguments) -> None:
    """Refuse a submission that does not name exactly the open client calls."""
    given = Counter(result.call_id for result in arguments["results"])
    wanted = [call.call_id for call in facts.open_calls if call.is_client]
    missing = [call_id for call_id in wanted if call_id not in given]
    extra = [call_id for call_id in given if call_id not in wanted]
    duplicate = [call_id for call_id, count in given.items() if count > 1]
    if missing or extra or duplicate:
        raise ToolResultMismatch(missing, extra, duplicate)


def refuse_late_results(facts: Facts, arguments: Arguments) -> None:
    """Refuse an answer to a call whose deadline has passed, whether or not a worker has noticed it."""
    given = {result.call_id for result in arguments["results"]}
    late = [call.call_id for call in facts.calls if call.call_id in given and call.is_due(arguments["now"])]
    if late:
        raise DeadlineExpired(late)


def refuse_unclear_approval(facts: Facts, arguments: Arguments) -> None:
    """Refuse an answer to a call for approval that neither allows nor denies it, or edits what nobody checked."""
    asked = {call.call_id: call.name for call in facts.open_calls if call.approval == "asked"}
    for result in arguments["results"]:
        if result.call_id not in asked:
            continue
        if result.approval_problem is not None:
            raise InvalidContent(f"call {result.call_id!r} asks for approval: {result.approval_problem}")
        if result.edits is not None and result.call_id not in arguments.get("edited", {}):
            raise InvalidContent(
                f"the edited arguments of call {result.call_id!r} cannot be checked: this engine has no tool named "
                f"{asked[result.call_id]!r}; submit to one that has"
            )


def refuse_unknown_queued(facts: Facts, arguments: Arguments) -> None:
    """Refuse to touch a message that is not in the queue."""
    if all(queued.id != arguments["queued_id"] for queued in facts.queue):
        raise MessageNotFound(facts.chat_id, arguments["queued_id"], expected="queued message")


def refuse_empty_compaction(facts: Facts, arguments: Arguments) -> None:
    """Refuse to compact nothing."""
    if not facts.history.foldable:
        raise NothingToCompact(facts.chat_id)


def refuse_unstorable_labels(facts: Facts, arguments: Arguments) -> None:
    """Refuse what is said about a chat if it has no spelling as JSON."""
    if "profile" in arguments:
        _ = PutProfile(arguments["profile"]).digest
    canonical([arguments.get("title"), arguments.get("metadata")])


_HELD: Final = (
    Trigger.attempt_started,
    Trigger.attempt_discarded,
    Trigger.step_finished,
    Trigger.call_started,
    Trigger.call_finished,
    Trigger.tools_finished,
    Trigger.compacted,
    Trigger.compaction_failed,
    Trigger.settled,
    Trigger.released,
    Trigger.failed,
    Trigger.lease_expired,
)

REFUSALS: Final[dict[Trigger, tuple[Refusal, ...]]] = {
    **{
        trigger: (refuse_archived,)
        for trigger in Trigger
        if trigger not in (Trigger.create, Trigger.unarchived, Trigger.repaired)
    },
    **dict.fromkeys(_HELD, (refuse_archived, refuse_dead_token)),
    Trigger.send_message: (refuse_archived, refuse_when_busy),
    Trigger.submit_tool_results: (refuse_archived, refuse_late_results, refuse_mismatch, refuse_unclear_approval),
    Trigger.edit_queued: (refuse_archived, refuse_unknown_queued),
    Trigger.delete_queued: (refuse_archived, refuse_unknown_queued),
    Trigger.promote_queued: (refuse_archived, refuse_unknown_queued),
    Trigger.request_compaction: (refuse_archived, refuse_empty_compaction),
    Trigger.create: (refuse_unstorable_labels,),
    Trigger.renamed: (refuse_archived, refuse_unstorable_labels),
    Trigger.metadata_changed: (refuse_archived, refuse_unstorable_labels),
    Trigger.unarchived: (),
    Trigger.message_erased: (),
    Trigger.repaired: (),
}
"""What each trigger refuses by a typed error of its own. All of it leaves the chat as it was."""
