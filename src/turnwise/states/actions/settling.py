"""Actions on interrupts: what is noted when the user interrupts, and what is kept once work has stopped."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states.draft import Draft
from turnwise.states.names import Need, Stage, StopReason, Tail
from turnwise.states.triggers import Failed, Repaired, Settled, Trigger
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
    draft.step = replace(draft.step, attempt_open=False)
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
