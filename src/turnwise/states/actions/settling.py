"""Actions on interrupts: the reason is noted, and partial work is committed once the job has stopped."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.actions.queue import clear_schedules
from turnwise.states.draft import Draft
from turnwise.states.events import ErrorEvent, ErrorInfo
from turnwise.states.model_errors import CONTEXT_OVERFLOW
from turnwise.states.names import Need, Stage, StopReason, Tail
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.triggers import CompactionFailed, Failed, Repaired, Settled, Trigger
from turnwise.states.writes import NoteReason


def note_interrupt(draft: Draft[Trigger]) -> None:
    """Note the reason of the interrupt; the chat is unsettled until partial work is committed."""
    reason = draft.at.reason
    if reason is not None:
        draft.writes.append(NoteReason(reason, draft.salt_of("reason")))
    draft.settled = False
    draft.interrupt_reason = reason
    draft.promote = draft.limits.promote_after_interrupt


def promote_when_settled(draft: Draft[Trigger]) -> None:
    """Let the first queued message become a turn as soon as the interrupt is settled."""
    draft.promote = True
    draft.ahead = (*(head.id for head in draft.queue[:1] if head.id not in draft.ahead), *draft.ahead)


def commit_partial(draft: Draft[Settled | Failed | Repaired]) -> None:
    """Keep the shown part of an open attempt as a partial message, and book its usage as far as it is known."""
    if not draft.step.attempt_open:
        return
    if isinstance(draft.trigger, Failed) and draft.trigger.takes_back:
        draft.take_back(draft.trigger.error.kind)
    partial = None if isinstance(draft.trigger, Repaired) else draft.trigger.partial
    draft.book(partial.usage if partial is not None else None, lost=True)
    if partial is not None and partial.parts:
        tail = Tail.awaits_answer if partial.calls else Tail.partial
        draft.append("assistant", partial.parts, tail=tail, partial=True, reply=partial)
        draft.put_calls(*partial.calls)


def mark_settled(draft: Draft[Trigger]) -> None:
    """Note that nothing of the interrupted work is left."""
    draft.settled = True
    draft.promote = False
    end_step(draft, StopReason.interrupted)


def end_step(draft: Draft[Trigger], reason: StopReason) -> None:
    """End the step: nothing more of it will be done, and `reason` ended the turn."""
    draft.step = draft.step.moved_to(Stage.done)
    draft.compaction = replace(draft.compaction, need=Need.none)
    draft.turn = replace(draft.turn, ended_by=reason)


def set_error(draft: Draft[Failed | Repaired]) -> None:
    """Set the error, and end the turn by it."""
    _end_by(draft, draft.trigger.error)


def set_overflow(draft: Draft[CompactionFailed]) -> None:
    """Set the error that the prompt is too long and no room could be made, and end the turn by it."""
    why = draft.trigger.error
    error = ErrorInfo(
        kind=CONTEXT_OVERFLOW,
        message=f"the prompt is longer than the model's context window, and it could not be folded: {why.message}",
        step=draft.step.number,
        attempt=draft.step.attempt,
        status=why.status,
        detail=why.detail,
    )
    _end_by(draft, error)


def _end_by(draft: Draft[Trigger], error: ErrorInfo) -> None:
    draft.last_error = error
    draft.settled = True
    draft.promote = False
    end_step(draft, StopReason.error)
    draft.events.append(ErrorEvent(error=error.public))


def clear_error(draft: Draft[Trigger]) -> None:
    """Clear the error."""
    draft.last_error = None


def restore_invariants(draft: Draft[Trigger]) -> None:
    """Drop what no state allows: a state that the table does not know, calls of another step, an archived schedule."""
    draft.calls = NO_CALLS
    if draft.archived:
        clear_schedules(draft)
    draft.stored_state = None
    if draft.before.stored_state is not None:
        draft.queue_changed("kept", *(queued.id for queued in draft.queue))
