"""Writes about errors: how a chat falls into one, and how it is forgotten."""

from __future__ import annotations

from turnwise.states.draft import Draft
from turnwise.states.events import ErrorEvent
from turnwise.states.names import StopReason
from turnwise.states.writes.settling import end_step


def set_error(draft: Draft) -> None:
    """Say what went wrong, and that the turn ended by it."""
    error = draft.arguments["error"]
    draft.set(last_error=error, settled=True, promote=False)
    end_step(draft, StopReason.error)
    draft.events.append(ErrorEvent(error=error))


def clear_error(draft: Draft) -> None:
    """Forget what went wrong."""
    draft.set(last_error=None)


def restore_promises(draft: Draft) -> None:
    """Forget what no state promises: a state the table does not know, calls of another step."""
    draft.calls = ()
    draft.set(stored_state=None)
