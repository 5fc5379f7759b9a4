"""Actions on errors: how a chat gets into `error`, and how the error is cleared."""

from __future__ import annotations

from turnwise.states.actions.settling import end_step
from turnwise.states.draft import Draft
from turnwise.states.errors import CONTEXT_OVERFLOW
from turnwise.states.events import ErrorEvent, ErrorInfo
from turnwise.states.names import StopReason
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.triggers import CompactionFailed, Failed, Repaired, Trigger


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
    """Drop what no state allows: a state that the table does not know, calls of another step."""
    draft.calls = NO_CALLS
    draft.stored_state = None
    if draft.before.stored_state is not None:
        draft.queue_changed("kept", *(queued.id for queued in draft.queue))
