"""Actions on interrupts: what is noted when the user says stop, and what is kept once work has stopped."""

from __future__ import annotations

import dataclasses

from turnwise.states.draft import Draft
from turnwise.states.names import Need, Stage, StopReason, Tail
from turnwise.states.triggers import Failed, Occurrence, Repaired, Settled
from turnwise.states.writes import NoteReason


def note_interrupt(draft: Draft[Occurrence]) -> None:
    """Note why the user said stop; partial work is settled next."""
    reason = draft.at.reason
    if reason is not None:
        draft.writes.append(NoteReason(reason, draft.salt_of("reason")))
    draft.settled = False
    draft.interrupt_reason = reason
    draft.promote = draft.limits.promote_after_interrupt


def promote_when_settled(draft: Draft[Occurrence]) -> None:
    """Let the head of the queue become a turn as soon as the interrupt is settled."""
    draft.promote = True


def commit_partial(draft: Draft[Settled | Failed | Repaired]) -> None:
    """Keep what an attempt under way had shown, as a partial message, and book what it used as far as known."""
    if not draft.step.attempt_open:
        return
    partial = None if isinstance(draft.occurrence, Repaired) else draft.occurrence.partial
    draft.book(partial.usage if partial is not None else None, lost=True)
    draft.step = dataclasses.replace(draft.step, attempt_open=False)
    if partial is not None and partial.parts:
        tail = Tail.awaits_answer if partial.calls else Tail.partial
        draft.append("assistant", partial.parts, tail=tail, partial=True, reply=partial)
        draft.put_calls(*partial.calls)


def mark_settled(draft: Draft[Occurrence]) -> None:
    """Note that nothing of the interrupted work is left."""
    draft.settled = True
    draft.promote = False
    end_step(draft, StopReason.interrupted)


def end_step(draft: Draft[Occurrence], reason: StopReason) -> None:
    """Leave the step as it is: nothing of it will be done any more, and the turn ended by `reason`."""
    draft.step = dataclasses.replace(
        draft.step, stage=Stage.done, failures=0, broken=0, startup_timeouts=0, retry_at=None
    )
    draft.compaction = dataclasses.replace(draft.compaction, need=Need.none)
    draft.turn = dataclasses.replace(draft.turn, ended_by=reason)
