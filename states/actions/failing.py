"""Actions on errors: how a chat falls into one, and how it is forgotten."""

from __future__ import annotations

from turnwise.states.actions.settling import end_step
from turnwise.states.draft import Draft
from turnwise.states.errors import CONTEXT_OVERFLOW
from turnwise.states.events import ErrorEvent, ErrorInfo
from turnwise.states.names import StopReason
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.triggers import CompactionFailed, Failed, Occurrence, Repaired


def set_error(draft: Draft[Failed | Repaired]) -> None:
    """Say what went wrong, and that the turn ended by it."""
    error = draft.occurrence.error
    draft.last_error = error
    draft.settled = True
    draft.promote = False
    end_step(draft, StopReason.error)
    draft.events.append(ErrorEvent(error=error))


def set_overflow(draft: Draft[CompactionFailed]) -> None:
    """Say that the prompt is too long for the model and that no room could be made, and that the turn ended by it."""
    why = draft.occurrence.error
    error = ErrorInfo(
        kind=CONTEXT_OVERFLOW,
        message=f"the prompt is longer than the model's context window, and it could not be folded: {why.message}",
        step=draft.step.number,
        attempt=draft.step.attempt,
        status=why.status,
    )
    draft.last_error = error
    draft.settled = True
    draft.promote = False
    end_step(draft, StopReason.error)
    draft.events.append(ErrorEvent(error=error))


def clear_error(draft: Draft[Occurrence]) -> None:
    """Forget what went wrong."""
    draft.last_error = None


def restore_promises(draft: Draft[Occurrence]) -> None:
    """Forget what no state promises: a state the table does not know, calls of another step."""
    draft.calls = NO_CALLS
    draft.stored_state = None
