"""Actions on the context window: how full it is, and the boundaries at which it starts anew."""

from __future__ import annotations

import itertools
from typing import Final

from msgspec.structs import replace

from turnwise.states.arguments import Summary
from turnwise.states.draft import Draft
from turnwise.states.events import CompactionEvent, ErrorInfo
from turnwise.states.facts import StepFacts
from turnwise.states.guards import turn_goes_on
from turnwise.states.messages import MarkerPart, Message, tokens_in
from turnwise.states.names import Audience, BoundaryReason, CompactionPhase, Need, Stage, Tail
from turnwise.states.step_calls import NO_CALLS
from turnwise.states.triggers import (
    AttemptDiscarded,
    Claimed,
    Compacted,
    CompactionFailed,
    Released,
    StepFinished,
    ToolsFinished,
    Trigger,
)
from turnwise.states.turn_limits import may_compact, wants_compaction
from turnwise.states.usage import Usage
from turnwise.states.writes import InsertBoundary

COMPACTED_TEXT: Final = "Earlier messages were summarised to make room."
CLEARED_TEXT: Final = "The context was cleared here."


def measure_context(draft: Draft[StepFinished]) -> None:
    """Note how full the context is, and whether a compaction is due."""
    reply, before = draft.trigger.reply, draft.compaction
    limit = reply.context_limit if reply.context_limit is not None else draft.limits.context_limit
    over = wants_compaction(reply, draft.limits)
    unproductive = over and before.unproven
    due = over and may_compact(draft.before, draft.limits)
    draft.compaction = replace(
        before,
        need=Need.due if due else Need.none,
        context_tokens=reply.context_tokens,
        context_limit=limit,
        estimated=reply.estimated,
        next_tokens=None if reply.context_tokens is None else reply.context_tokens + tokens_in(reply.parts),
        unproven=before.unproven and reply.context_tokens is None,
    )
    if unproductive:
        draft.turn = replace(draft.turn, compacts_no_more=True)
        publish_compaction(draft, "unproductive")


def commit_boundary(draft: Draft[Compacted]) -> None:
    """Set the boundary: a marker for the user, new messages for the model, and those that are carried past it."""
    summary, goes_on = draft.trigger.summary, turn_goes_on(draft)
    folded, carried = summary.folded, len(summary.carried)
    publish_compaction(draft, "summarised", folded=folded)
    _book(draft)
    reopens = goes_on and not (draft.history.unfinished or draft.step.stage is Stage.refused)
    waits = goes_on or draft.history.unfinished
    after_marker = itertools.count(draft.history.length + 2)
    order = tuple(entry if isinstance(entry, int) else next(after_marker) for entry in summary.messages)
    _mark(draft, "compaction", COMPACTED_TEXT, carried=order, usage=draft.trigger.usage)
    for entry in summary.messages:
        if not isinstance(entry, int):
            _append_for_the_model(draft, entry)
    tail = Tail.awaits_answer if waits else Tail.answered
    draft.history = replace(draft.history, foldable=carried, tail=tail)
    draft.turn = replace(draft.turn, reentries=draft.turn.reentries + reopens)
    draft.compaction = replace(draft.compaction, unproven=True, count=draft.compaction.count + 1)
    _conclude(draft)
    for phase in ("stored", "finished"):
        publish_compaction(draft, phase, folded=folded, carried=carried, summary=summary)
    draft.compaction = replace(draft.compaction, context_tokens=None, next_tokens=summary.tokens)


def note_compaction_failure(draft: Draft[CompactionFailed]) -> None:
    """Report that the summary failed, or that nothing was to be folded; the history stays as it is."""
    _book(draft)
    _conclude(draft)
    if draft.trigger.declined:
        publish_compaction(draft, "declined")
    else:
        publish_compaction(draft, "failed", error=draft.trigger.error.public)


def order_room(draft: Draft[AttemptDiscarded]) -> None:
    """Discard the attempt whose prompt was refused as too long; a compaction must come before the next one."""
    draft.book(draft.trigger.usage, lost=True)
    draft.step = draft.step.moved_to(Stage.refused)
    draft.compaction = replace(draft.compaction, need=Need.due)


def owe_compaction(draft: Draft[Claimed | ToolsFinished]) -> None:
    """Have the history folded before the next step, whose prompt is estimated not to fit."""
    before = draft.compaction
    draft.compaction = replace(before, need=Need.due, context_tokens=before.next_tokens, estimated=True)


def give_up_summary(draft: Draft[Released]) -> None:
    """End the attempt at a summary, and book what it has used: the next worker begins another one."""
    if draft.step.attempt_open:
        draft.book(draft.trigger.usage, lost=True)
        draft.step = replace(draft.step, attempt_open=False, lost=draft.step.lost + 1)


def order_compaction(draft: Draft[Trigger]) -> None:
    """Begin a step of its own for the compaction that was asked for."""
    draft.ask_first_model()
    draft.step = StepFacts(number=draft.step.number + 1)
    draft.calls = NO_CALLS
    draft.compaction = replace(draft.compaction, need=Need.requested)
    draft.interrupt_reason = None


def insert_clear_boundary(draft: Draft[Trigger]) -> None:
    """Start the context anew, without a model call."""
    _mark(draft, "clear", CLEARED_TEXT)
    draft.history = replace(draft.history, foldable=0, tail=Tail.empty)
    draft.compaction = replace(draft.compaction, need=Need.none, unproven=False, context_tokens=None, next_tokens=0)
    draft.interrupt_reason = None


def publish_compaction(
    draft: Draft[Trigger],
    phase: CompactionPhase,
    *,
    folded: int | None = None,
    carried: int | None = None,
    summary: Summary | None = None,
    error: ErrorInfo | None = None,
) -> None:
    """Emit an event with the phase of a compaction and its figures."""
    compaction = draft.compaction
    percent = None
    if compaction.context_tokens is not None and compaction.context_limit:
        percent = round(compaction.context_tokens * 100 / compaction.context_limit, 1)
    events = draft.closing if phase == "started" else draft.events  # a compaction starts once the chat is compacting
    events.append(
        CompactionEvent(
            phase=phase,
            step=draft.step.number,
            percent=percent,
            context_tokens=compaction.context_tokens,
            context_limit=compaction.context_limit,
            estimated=compaction.estimated,
            folded=folded,
            carried=carried,
            messages_after=None if summary is None else len(summary.messages),
            tokens_after=None if summary is None else summary.tokens,
            error=error,
        )
    )


def _book(draft: Draft[Compacted | CompactionFailed]) -> None:
    """Book the usage of a compaction's model calls; one that called no model books nothing, not even an unknown."""
    if draft.trigger.usage is None:
        draft.book_nothing()
    else:
        draft.book(draft.trigger.usage)


def _append_for_the_model(draft: Draft[Trigger], message: Message) -> None:
    draft.append(
        message.role,
        message.parts,
        audience=Audience.model,
        call_index=message.call_index if message.role == "tool" else None,
        partial=message.partial,
        synthetic=True,
        instead_of=message if message.position else None,
    )


def _conclude(draft: Draft[Trigger]) -> None:
    draft.compaction = replace(draft.compaction, need=Need.none, step=draft.step.number)
    draft.turn = replace(draft.turn, compactions=draft.turn.compactions + 1)
    draft.step = draft.step.moved_to(Stage.refused if draft.step.stage is Stage.refused else Stage.done)


def _mark(
    draft: Draft[Trigger],
    reason: BoundaryReason,
    text: str,
    *,
    carried: tuple[int, ...] = (),
    usage: Usage | None = None,
) -> None:
    part = MarkerPart(reason=reason, text=text, carried=carried)
    marker = draft.append("system", (part,), audience=Audience.user, synthetic=True)
    draft.writes.append(InsertBoundary(reason, draft.step.number, marker.position, carried, usage))
    draft.history = replace(draft.history, boundary=marker.position)
