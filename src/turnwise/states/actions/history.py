"""Actions on the history that come from outside: what the user says, edits and erases."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from turnwise.states.actions.queue import clear_schedules, record_receipt
from turnwise.states.actions.turns import lose_attempt
from turnwise.states.draft import Draft
from turnwise.states.events import ActionRequiredEvent, ErrorEvent, HistoryResetEvent, MessageEvent
from turnwise.states.messages import Message, recorded_calls, recorded_results
from turnwise.states.names import Audience, ChatState, Need, Tail
from turnwise.states.step_calls import StepCalls
from turnwise.states.triggers import EditMessage, MessageErased, ScheduleFired, SendMessage, Trigger
from turnwise.states.writes import ERASED, CutHistory, DropQueued, EraseEdits, EraseMessage, EraseText, PutProfile


def append_user_message(draft: Draft[SendMessage | ScheduleFired | EditMessage]) -> None:
    """Append the user's message to the history."""
    wakeup = None if isinstance(draft.trigger, EditMessage) else draft.trigger.wakeup
    message = draft.append("user", draft.trigger.parts, tail=Tail.awaits_answer, wakeup=wakeup)
    record_receipt(draft, message.id, queued=False)


def cut_history(draft: Draft[EditMessage]) -> None:
    """Cut the edited message and everything after it, and end an attempt under way."""
    cut = draft.trigger.cut
    lose_attempt(draft, "the history was edited", usage=draft.trigger.usage)
    draft.writes.append(CutHistory(cut.position, cut.first_removed))
    draft.background = ()
    draft.history = replace(draft.history, boundary=cut.boundary, foldable=cut.foldable)
    draft.compaction = replace(draft.compaction, need=Need.none, unproven=False, context_tokens=None, next_tokens=None)
    draft.events.append(HistoryResetEvent(first_removed=cut.first_removed))


def erase_content(draft: Draft[MessageErased]) -> None:
    """Erase content from messages, queue, labels, errors and reasons; the log keeps digests without salts."""
    erasing = draft.trigger.erasing
    for message in erasing.messages:
        _blank_message(draft, message)
        _tell_erased(draft, message, erasing.cut)
    for message in erasing.results:
        draft.writes.append(EraseEdits(message, draft.salt_of("edits", message.id)))
        _tell_erased(draft, message, erasing.cut)
    _erase_queued(draft, erasing.queued)
    if erasing.profile is not None:
        draft.titled = draft.titled or draft.profile.title is not None  # what was erased is not made again
        draft.profile = erasing.profile
        draft.writes.append(PutProfile(erasing.profile, draft.salt_of("profile")))
    if erasing.errors:
        error = draft.before.last_error
        draft.last_error = error and replace(error, message=ERASED, detail=None)
        draft.writes.append(EraseText("errors"))
    if erasing.reasons:
        draft.interrupt_reason = None
        draft.writes.append(EraseText("reasons"))
    if erasing.schedules:
        clear_schedules(draft)
    if erasing.quarantine:
        draft.writes.append(EraseText("quarantine"))
    _publish_erased(draft)


def _blank_message(draft: Draft[Trigger], message: Message) -> None:
    draft.writes.append(EraseMessage(message))
    draft.compaction = replace(draft.compaction, next_tokens=None)
    asked_ids, answered_ids = recorded_calls(message), recorded_results(message)
    draft.calls = StepCalls(
        call.blanked(arguments=call.call_id in asked_ids, answer=call.call_id in answered_ids)
        if call.call_id in asked_ids | answered_ids
        else call
        for call in draft.calls
    )


def _tell_erased(draft: Draft[Trigger], message: Message, cut: Collection[str]) -> None:
    draft.history_changed()
    if message.id not in cut and message.audience is not Audience.model:
        draft.events.append(MessageEvent(message=message))


def _publish_erased(draft: Draft[Trigger]) -> None:
    """Publish the open calls and the error again, if they are shown and the erasure has changed them."""
    before = draft.before
    if before.state is ChatState.requires_action and draft.calls.asked_of_client != before.calls.asked_of_client:
        draft.events.append(ActionRequiredEvent(calls=draft.calls.asked_of_client))
    if before.state is ChatState.error and draft.last_error is not None and draft.last_error != before.last_error:
        draft.events.append(ErrorEvent(error=draft.last_error.public))


def _erase_queued(draft: Draft[Trigger], names: frozenset[str]) -> None:
    waiting = [queued.id for queued in draft.queue if queued.id in names]
    if waiting:
        draft.queue = tuple(queued for queued in draft.queue if queued.id not in names)
        draft.writes.extend(DropQueued(name, "deleted") for name in waiting)
        draft.queue_changed("deleted", *waiting)
    draft.writes.extend(EraseText("queued", name) for name in sorted(names))
