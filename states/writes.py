"""The writes that rows name: each changes a draft, and so the facts, the store and what subscribers see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from turnwise.states.calls import Answer, CallOutcome, ToolCall
from turnwise.states.digests import digest_of_answer
from turnwise.states.draft import Draft
from turnwise.states.effects import (
    CutHistory,
    DropQueued,
    EraseMessage,
    GrantLease,
    InsertBoundary,
    PutProfile,
    PutQueued,
    RecordReceipt,
    RecordUsage,
)
from turnwise.states.events import (
    ActionRequiredEvent,
    AttemptDiscardedEvent,
    CompactionEvent,
    ErrorEvent,
    HistoryResetEvent,
    MessageEvent,
    RetryEvent,
    ToolResultEvent,
    TurnFinishedEvent,
)
from turnwise.states.facts import Lease, StepFacts, TurnFacts
from turnwise.states.guards import over_threshold, spent_budget, turn_goes_on
from turnwise.states.messages import MarkerPart, QueuedMessage, TextPart, ToolResultPart
from turnwise.states.names import (
    Audience,
    CallStatus,
    ChatState,
    Need,
    Stage,
    StopReason,
    Tail,
)
from turnwise.states.usage import Usage, reported

INTERRUPTED_TEXT: Final = "Interrupted by the user before a result was there."
ABANDONED_TEXT: Final = "Not run: the chat ended in an error before a result was there."
TIMED_OUT_TEXT: Final = "Timed out: no result arrived before the deadline. Whether the action happened is unknown."
UNKNOWN_TEXT: Final = "Outcome unknown: the process that ran this call stopped before a result was recorded. It may or may not have taken effect."
COMPACTED_TEXT: Final = "Earlier messages were summarised to make room."
CLEARED_TEXT: Final = "The context was cleared here."


# Creation and labels


def insert_chat(draft: Draft) -> None:
    """Store the chat with what was said at its creation."""
    profile = draft.arguments["profile"]
    draft.set(profile=profile)
    draft.writes.append(PutProfile(profile))


def change_title(draft: Draft) -> None:
    """Store the new title."""
    _change_profile(draft, title=draft.arguments["title"])


def change_metadata(draft: Draft) -> None:
    """Store the new metadata."""
    _change_profile(draft, metadata=draft.arguments["metadata"])


def mark_archived(draft: Draft) -> None:
    """Close the chat to everything but `unarchived`."""
    draft.set(archived=True)


def unmark_archived(draft: Draft) -> None:
    """Open the chat again."""
    draft.set(archived=False)


def blank_message(draft: Draft) -> None:
    """Take the payload out of a message; its digest stays in the audit log."""
    message = draft.arguments["erased"]
    draft.writes.append(EraseMessage(message))
    draft.set(history_version=draft.before.version + 1)
    if message.audience is not Audience.model:
        draft.events.append(MessageEvent(message=message))


# Turns and the queue


def start_turn(draft: Draft) -> None:
    """Begin a new turn, with a fresh budget."""
    draft.turn = TurnFacts(
        number=draft.turn.number + 1,
        first_step=draft.step.number + 1,
        started_at=draft.now,
        open=True,
    )
    _leave_step(draft)
    draft.set(stop_reason=None, promote=False, interrupt_reason=None, settled=True)


def reopen_turn(draft: Draft) -> None:
    """Go on with the turn that was stopped, with a fresh budget."""
    draft.turn = dataclasses.replace(
        draft.turn,
        steps=0,
        reentries=0,
        ended_by=None,
        compacts_no_more=False,
        started_at=draft.now,
        open=True,
    )
    _leave_step(draft)
    draft.set(stop_reason=None, promote=False, interrupt_reason=None, settled=True)


def clear_error(draft: Draft) -> None:
    """Forget what went wrong."""
    draft.set(last_error=None)


def append_user_message(draft: Draft) -> None:
    """Append what the user said to the history."""
    message = draft.append("user", draft.arguments["parts"])
    draft.ends_with(Tail.awaits_answer)
    _record_receipt(draft, message.id, queued=False)


def enqueue_last(draft: Draft) -> None:
    """Put the message at the end of the queue."""
    queued = _accepted(draft)
    draft.queue = (*draft.queue, queued)
    draft.writes.append(PutQueued(queued, rank=draft.serial))
    _record_receipt(draft, queued.id, queued=True)
    draft.queue_changed()


def enqueue_first(draft: Draft) -> None:
    """Put the message at the head of the queue."""
    queued = _accepted(draft)
    draft.queue = (queued, *draft.queue)
    _rerank(draft)
    _record_receipt(draft, queued.id, queued=True)
    draft.queue_changed()


def take_queue_head(draft: Draft) -> None:
    """Make the head of the queue the user message of a new turn."""
    draft.tell_closing()
    head = draft.queue[0]
    start_turn(draft)
    draft.take_queued(head)
    draft.append("user", head.parts, message_id=head.id)
    draft.ends_with(Tail.awaits_answer)
    draft.queue_changed()


def clear_queue(draft: Draft) -> None:
    """Empty the queue."""
    if draft.queue:
        draft.writes.extend(DropQueued(queued.id, "deleted") for queued in draft.queue)
        draft.queue = ()
        draft.queue_changed()


def change_queued(draft: Draft) -> None:
    """Replace the content of a queued message; it keeps its place."""
    place, queued = _find_queued(draft)
    changed = queued.model_copy(update={"parts": draft.arguments["parts"]})
    draft.queue = (*draft.queue[:place], changed, *draft.queue[place + 1 :])
    draft.writes.append(PutQueued(changed, rank=None))
    draft.queue_changed()


def remove_queued(draft: Draft) -> None:
    """Take a message out of the queue, for good."""
    place, queued = _find_queued(draft)
    draft.queue = (*draft.queue[:place], *draft.queue[place + 1 :])
    draft.writes.append(DropQueued(queued.id, "deleted"))
    draft.queue_changed()


def move_to_head(draft: Draft) -> None:
    """Move a queued message to the head."""
    place, queued = _find_queued(draft)
    if place:
        draft.queue = (queued, *draft.queue[:place], *draft.queue[place + 1 :])
        _rerank(draft)
        draft.queue_changed()


def finish_turn(draft: Draft) -> None:
    """Tell why the turn ended and what it used, after the change of status."""
    turn = draft.turn
    if not turn.open:
        return
    reason = turn.ended_by or StopReason.end_turn
    draft.turn = dataclasses.replace(turn, open=False)
    draft.set(stop_reason=reason)
    draft.closing.append(
        TurnFinishedEvent(
            turn=turn.number,
            stop_reason=reason,
            provider_reason=turn.provider_reason,
            usage=turn.usage,
        )
    )


def name_spent_budget(draft: Draft) -> None:
    """Note which budget, or which stop-after tool, ended the turn."""
    if draft.turn.ended_by is not None:
        return
    stopped = any(call.stop_after and call.status is CallStatus.succeeded for call in draft.calls)
    reason = StopReason.stop_after_tool if stopped else spent_budget(draft.turn, draft.arguments)
    draft.turn = dataclasses.replace(draft.turn, ended_by=reason)


# The lease


def grant_lease(draft: Draft) -> None:
    """Give the chat to the claiming worker, under a fresh fencing token."""
    token = draft.before.fence + 1
    lease = Lease(draft.arguments["worker"], token)
    draft.set(lease=lease, fence=token)
    draft.writes.append(GrantLease(lease, draft.limits.lease))


def drop_lease(draft: Draft) -> None:
    """End the lease."""
    draft.drop_lease()


# The model step


def begin_step(draft: Draft) -> None:
    """Begin a new step, unless the last one has still to be answered by the model."""
    if draft.step.stage is Stage.asking:
        return
    draft.step = StepFacts(number=draft.step.number + 1, stage=Stage.asking)
    draft.calls = ()
    draft.turn = dataclasses.replace(draft.turn, steps=draft.turn.steps + 1, ended_by=None)


def start_attempt(draft: Draft) -> None:
    """Number a new attempt; take back what an attempt that died had shown."""
    _lose_attempt(draft, "the worker that ran it is gone")
    draft.step = dataclasses.replace(
        draft.step,
        attempt=draft.step.attempt + 1,
        attempt_open=draft.before.state is ChatState.streaming,
        retry_at=None,
    )
    if draft.before.state is ChatState.compacting:
        draft.events.append(_compaction_event(draft, "started"))


def discard_attempt(draft: Draft) -> None:
    """Take back what the attempt had shown, book its usage, and note when the next one may start."""
    arguments, step = draft.arguments, draft.step
    error = arguments["error"]
    _take_back(draft, error.kind)
    _book(draft, reported(arguments.get("usage")).marked_partial())
    timeouts = step.startup_timeouts + 1 if error.kind == "startup_timeout" else 0
    draft.step = dataclasses.replace(
        draft.step,
        failures=step.failures + 1,
        startup_timeouts=timeouts,
        retry_at=arguments["retry_at"],
    )
    draft.events.append(
        RetryEvent(
            step=step.number,
            attempt=step.attempt,
            delay=arguments["delay"],
            error=error,
            retry_at=arguments["retry_at"],
        )
    )


def commit_reply(draft: Draft) -> None:
    """Append the assistant message, book its usage, and note how full the context is."""
    reply = draft.arguments["reply"]
    if reply.parts:
        draft.append("assistant", reply.parts)
    draft.ends_with(Tail.awaits_answer if reply.calls else Tail.answered)
    stage = Stage.acting if any(call.is_local for call in reply.calls) else Stage.done
    draft.step = dataclasses.replace(draft.step, stage=stage, attempt_open=False, failures=0, startup_timeouts=0)
    _book(draft, reported(reply.usage))
    ended_by = None if reply.calls else reply.stop_reason
    draft.turn = dataclasses.replace(draft.turn, ended_by=ended_by, provider_reason=reply.provider_reason)
    _measure_context(draft)


def plan_calls(draft: Draft) -> None:
    """Record each call before any of them starts."""
    for call in draft.arguments["reply"].calls:
        draft.put_call(call)


def ask_client(draft: Draft) -> None:
    """Set the deadlines of the open client calls, and show the calls."""
    default = draft.limits.action_deadline
    for call in draft.calls:
        if call.open and call.is_client and call.deadline is None:
            asked = call.asked_at(draft.now, default)
            if asked.deadline is not None:
                draft.put_call(asked)
    draft.events.append(ActionRequiredEvent(calls=tuple(call for call in draft.calls if call.open)))


# Tool calls


def start_call(draft: Draft) -> None:
    """Record that the call starts, before it does."""
    draft.put_call(_find_call(draft).with_status(CallStatus.started))


def finish_call(draft: Draft) -> None:
    """Append the call's result as a message of its own."""
    _answer(draft, draft.arguments["outcome"])


def conclude_tools(draft: Draft) -> None:
    """Note that every local call of the step has its result."""
    draft.step = dataclasses.replace(draft.step, stage=Stage.done)


def record_results(draft: Draft) -> None:
    """Append the client's results, and keep what proves them."""
    receipt_id = f"{draft.before.chat_id}-r{draft.before.version + 1}"
    for result in draft.arguments["results"]:
        answer = Answer(
            digest_of_answer(result.output, is_error=result.is_error),
            receipt_id,
            draft.now,
        )
        status = CallStatus.failed if result.is_error else CallStatus.succeeded
        outcome = CallOutcome(
            call_id=result.call_id,
            status=status,
            output=result.output,
            is_error=result.is_error,
            answer=answer,
        )
        _answer(draft, outcome)


def time_out_due_calls(draft: Draft) -> None:
    """Answer every call whose deadline has passed."""
    for call in draft.calls:
        if call.open and call.deadline is not None and call.deadline <= draft.now:
            _close(draft, call, CallStatus.timed_out, TIMED_OUT_TEXT, is_error=True)


def give_up_started_calls(draft: Draft) -> None:
    """Answer each started at-most-once call with `unknown`: it may have happened and must not run again."""
    for call in draft.calls:
        if call.status is CallStatus.started and call.crash == "at_most_once":
            _close(draft, call, CallStatus.unknown, UNKNOWN_TEXT, is_error=True)


def close_open_calls(draft: Draft) -> None:
    """Answer every open call: nobody will run it any more."""
    interrupted = draft.before.state is ChatState.interrupted
    status = CallStatus.interrupted if interrupted else CallStatus.cancelled
    text = INTERRUPTED_TEXT if interrupted else ABANDONED_TEXT
    for call in draft.calls:
        if call.open:
            _close(draft, call, status, text, is_error=not interrupted)


# Compaction


def commit_boundary(draft: Draft) -> None:
    """Set the boundary: a marker for the user, the summary for the model, and what is carried past it."""
    summary = draft.arguments["summary"]
    draft.events.append(_compaction_event(draft, "summarised", folded=summary.folded))
    _book(draft, reported(draft.arguments.get("usage")).as_compaction(), "summary")
    goes_on = turn_goes_on(draft.before, draft.arguments)
    reopens = goes_on and draft.history.tail is not Tail.awaits_answer
    waits = goes_on or summary.awaits_answer or any(call.open for call in draft.calls)
    _mark(draft, "compaction", COMPACTED_TEXT, summary.carried)
    draft.append("user", (TextPart(text=summary.text),), audience=Audience.model, synthetic=True)
    draft.history = dataclasses.replace(draft.history, foldable=len(summary.carried))
    draft.ends_with(Tail.awaits_answer if waits else Tail.answered)
    draft.turn = dataclasses.replace(draft.turn, reentries=draft.turn.reentries + reopens)
    draft.compaction = dataclasses.replace(
        draft.compaction,
        need=Need.none,
        step=draft.step.number,
        unproven=True,
        count=draft.compaction.count + 1,
    )
    counts = {"folded": summary.folded, "carried": len(summary.carried)}
    draft.events.append(_compaction_event(draft, "stored", **counts))
    draft.events.append(_compaction_event(draft, "finished", **counts))


def note_compaction_failure(draft: Draft) -> None:
    """Report that the summary failed; the history stays as it is."""
    _book(draft, reported(draft.arguments.get("usage")).as_compaction(), "summary")
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none, step=draft.step.number)
    draft.events.append(_compaction_event(draft, "failed").model_copy(update={"error": draft.arguments["error"]}))


def order_compaction(draft: Draft) -> None:
    """Begin a step of its own for the compaction that was asked for."""
    draft.step = StepFacts(number=draft.step.number + 1, stage=Stage.done)
    draft.calls = ()
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.requested)
    draft.set(settled=True)


def insert_clear_boundary(draft: Draft) -> None:
    """Start the context anew, without a model call."""
    _mark(draft, "clear", CLEARED_TEXT, ())
    draft.history = dataclasses.replace(draft.history, foldable=0, tail=Tail.empty)
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none, unproven=False)


# Interrupts, edits, failures


def note_interrupt(draft: Draft) -> None:
    """Note why the user said stop; partial work is settled next."""
    draft.set(
        settled=False,
        interrupt_reason=draft.arguments.get("reason"),
        promote=draft.limits.promote_after_interrupt or draft.before.promote,
    )


def promote_when_settled(draft: Draft) -> None:
    """Let the head of the queue become a turn as soon as the interrupt is settled."""
    draft.set(promote=True)


def commit_partial(draft: Draft) -> None:
    """Keep what the dead attempt had shown, as a partial message."""
    partial = draft.arguments.get("partial")
    if draft.step.attempt_open:
        usage = partial.usage if partial is not None else None
        _book(draft, reported(usage).marked_partial())
    if partial is not None and partial.parts:
        draft.append("assistant", partial.parts, partial=True)
        draft.ends_with(Tail.awaits_answer if partial.calls else Tail.partial)
        for call in partial.calls:
            draft.put_call(call)
    draft.step = dataclasses.replace(draft.step, attempt_open=False, retry_at=None, failures=0, startup_timeouts=0)


def mark_settled(draft: Draft) -> None:
    """Note that nothing of the interrupted work is left."""
    draft.step = dataclasses.replace(draft.step, stage=Stage.done)
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none)
    draft.turn = dataclasses.replace(draft.turn, ended_by=StopReason.interrupted)
    draft.set(settled=True, promote=False)


def cut_history(draft: Draft) -> None:
    """Take the edited message and all that followed out of the history."""
    cut = draft.arguments["cut"]
    _lose_attempt(draft, "the history was edited")
    draft.writes.append(CutHistory(cut.position, cut.first_removed))
    draft.history = dataclasses.replace(draft.history, boundary=cut.boundary, foldable=cut.foldable)
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none, unproven=False)
    draft.set(history_version=draft.before.version + 1)
    draft.events.append(HistoryResetEvent(first_removed=cut.first_removed))


def cancel_open_calls(draft: Draft) -> None:
    """Close the calls that were cut away with their messages: they need no result any more."""
    for call in draft.calls:
        if call.open:
            draft.put_call(call.with_status(CallStatus.cancelled))


def restore_promises(draft: Draft) -> None:
    """Forget what no state promises: a state the table does not know, calls of another step, a stale flag."""
    draft.calls = ()
    draft.set(stored_state=None, settled=True, promote=False)


def set_error(draft: Draft) -> None:
    """Say what went wrong, and that the turn ended by it."""
    error = draft.arguments["error"]
    draft.set(last_error=error, settled=True, promote=False)
    draft.step = dataclasses.replace(draft.step, stage=Stage.done, retry_at=None)
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none)
    draft.turn = dataclasses.replace(draft.turn, ended_by=StopReason.error)
    draft.events.append(ErrorEvent(error=error))


# What the writes share


def _change_profile(draft: Draft, **changes: object) -> None:
    profile = dataclasses.replace(draft.before.profile, **changes)  # type: ignore[arg-type]
    draft.set(profile=profile)
    draft.writes.append(PutProfile(profile))


def _leave_step(draft: Draft) -> None:
    draft.step = dataclasses.replace(
        draft.step,
        stage=Stage.done,
        attempt_open=False,
        failures=0,
        startup_timeouts=0,
        retry_at=None,
    )
    draft.calls = ()


def _accepted(draft: Draft) -> QueuedMessage:
    return QueuedMessage(
        id=draft.next_message_id(),
        parts=draft.arguments["parts"],
        accepted_at=draft.now,
    )


def _record_receipt(draft: Draft, message_id: str, *, queued: bool) -> None:
    client_id = draft.arguments.get("client_id")
    if client_id is not None:
        draft.writes.append(RecordReceipt(client_id, draft.arguments["content_digest"], message_id, queued))


def _rerank(draft: Draft) -> None:
    draft.writes.extend(PutQueued(queued, rank=rank) for rank, queued in enumerate(draft.queue, start=1))


def _find_queued(draft: Draft) -> tuple[int, QueuedMessage]:
    queued_id = draft.arguments["queued_id"]
    return next((place, queued) for place, queued in enumerate(draft.queue) if queued.id == queued_id)


def _find_call(draft: Draft) -> ToolCall:
    call_id = draft.arguments["call_id"]
    return next(call for call in draft.calls if call.call_id == call_id)


def _answer(draft: Draft, outcome: CallOutcome) -> None:
    call = next(call for call in draft.calls if call.call_id == outcome.call_id)
    draft.put_call(call.with_status(outcome.status, outcome.answer))
    part = ToolResultPart(
        call_id=call.call_id,
        name=call.name,
        output=outcome.output,
        is_error=outcome.is_error,
        outcome=outcome.status,
        attachments=outcome.attachments,
    )
    draft.append("tool", (part,), call_index=call.index, synthetic=outcome.synthetic)
    draft.ends_with(Tail.awaits_answer)
    draft.events.append(
        ToolResultEvent(
            step=call.step,
            call_id=call.call_id,
            index=call.index,
            name=call.name,
            output=outcome.output,
            is_error=outcome.is_error,
            outcome=outcome.status,
        )
    )


def _close(draft: Draft, call: ToolCall, status: CallStatus, text: str, *, is_error: bool) -> None:
    _answer(
        draft,
        CallOutcome(
            call_id=call.call_id,
            status=status,
            output=text,
            is_error=is_error,
            synthetic=True,
        ),
    )


def _take_back(draft: Draft, reason: str) -> None:
    if draft.step.attempt_open:
        draft.events.append(AttemptDiscardedEvent(step=draft.step.number, attempt=draft.step.attempt, reason=reason))
        draft.step = dataclasses.replace(draft.step, attempt_open=False)


def _lose_attempt(draft: Draft, reason: str) -> None:
    if draft.step.attempt_open:
        _book(draft, reported(None))
        _take_back(draft, reason)


def _book(draft: Draft, usage: Usage, purpose: str = "step") -> None:
    draft.turn = dataclasses.replace(draft.turn, usage=draft.turn.usage + usage)
    draft.usage = draft.usage + usage
    draft.writes.append(
        RecordUsage(
            purpose="summary" if purpose == "summary" else "step",
            turn=draft.turn.number,
            step=draft.step.number,
            attempt=draft.step.attempt,
            usage=usage,
        )
    )


def _measure_context(draft: Draft) -> None:
    reply = draft.arguments["reply"]
    known = draft.compaction
    limit = reply.context_limit if reply.context_limit is not None else draft.limits.context_limit
    over = reply.context_tokens is not None and over_threshold(reply.context_tokens, limit, draft.limits)
    measured = reply.context_tokens is not None
    draft.compaction = dataclasses.replace(
        known,
        context_tokens=reply.context_tokens,
        context_limit=limit,
        estimated=reply.estimated,
        unproven=known.unproven and not measured,
    )
    if known.unproven and over:
        draft.turn = dataclasses.replace(draft.turn, compacts_no_more=True)
        draft.events.append(_compaction_event(draft, "unproductive"))
    elif over and not draft.turn.compacts_no_more and known.step != draft.step.number:
        draft.compaction = dataclasses.replace(draft.compaction, need=Need.due)


def _compaction_event(draft: Draft, phase: str, **counts: int) -> CompactionEvent:
    known = draft.compaction
    percent = None
    if known.context_tokens is not None and known.context_limit:
        percent = round(known.context_tokens * 100 / known.context_limit, 1)
    return CompactionEvent(
        phase=phase,
        step=draft.step.number,
        percent=percent,
        context_tokens=known.context_tokens,
        context_limit=known.context_limit,
        estimated=known.estimated,
        **counts,
    )


def _mark(draft: Draft, reason: str, text: str, carried: Iterable[int]) -> None:
    part = MarkerPart(reason=reason, text=text)
    marker = draft.append("system", (part,), audience=Audience.user, synthetic=True)
    draft.writes.append(
        InsertBoundary(
            reason="clear" if reason == "clear" else "compaction",
            step=draft.step.number,
            position=marker.position,
            carried=tuple(carried),
            usage=draft.arguments.get("usage"),
        )
    )
    draft.history = dataclasses.replace(draft.history, boundary=marker.position)
