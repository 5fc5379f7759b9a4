"""Writes about interrupts: what is noted when the user says stop, and what is kept once work has stopped."""

from __future__ import annotations

import dataclasses

from turnwise.states.draft import Draft
from turnwise.states.effects import NoteReason
from turnwise.states.names import Need, Stage, StopReason, Tail


def note_interrupt(draft: Draft) -> None:
    """Note why the user said stop; partial work is settled next."""
    reason = draft.arguments.get("reason")
    if reason is not None:
        draft.writes.append(NoteReason(reason, draft.salt_of("reason")))
    draft.set(
        settled=False,
        interrupt_reason=reason,
        promote=draft.limits.promote_after_interrupt,
    )


def promote_when_settled(draft: Draft) -> None:
    """Let the head of the queue become a turn as soon as the interrupt is settled."""
    draft.set(promote=True)


def commit_partial(draft: Draft) -> None:
    """Keep what an attempt under way had shown, as a partial message, and book what it used as far as known."""
    if not draft.step.attempt_open:
        return
    partial = draft.arguments.get("partial")
    draft.book(partial.usage if partial is not None else None, lost=True)
    draft.step = dataclasses.replace(draft.step, attempt_open=False)
    if partial is not None and partial.parts:
        tail = Tail.awaits_answer if partial.calls else Tail.partial
        draft.append("assistant", partial.parts, tail=tail, partial=True, reply=partial)
        draft.put_calls(*partial.calls)


def mark_settled(draft: Draft) -> None:
    """Note that nothing of the interrupted work is left."""
    draft.set(settled=True, promote=False)
    end_step(draft, StopReason.interrupted)


def end_step(draft: Draft, reason: StopReason) -> None:
    """Leave the step as it is: nothing of it will be done any more, and the turn ended by `reason`."""
    draft.step = dataclasses.replace(
        draft.step, stage=Stage.done, failures=0, broken=0, startup_timeouts=0, retry_at=None
    )
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none)
    draft.turn = dataclasses.replace(draft.turn, ended_by=reason)
