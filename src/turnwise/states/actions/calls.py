"""Actions on tool calls: from plan to result, however they end."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from turnwise.states.calls import Answer, CallOutcome, ToolCall, ToolResult
from turnwise.states.draft import Draft
from turnwise.states.events import ActionRequiredEvent, ToolResultEvent
from turnwise.states.facts import MOST_LOST
from turnwise.states.messages import ToolResultPart
from turnwise.states.names import CallStatus, ChatState, Stage, Tail
from turnwise.states.triggers import CallFinished, CallStarted, StepFinished, SubmitToolResults, Trigger
from turnwise.states.values.digests import guarded
from turnwise.states.values.limits import within
from turnwise.states.writes import NoteDeadline, NoteSubagent

INTERRUPTED_TEXT: Final = "Interrupted by the user before a result was there."
ABANDONED_TEXT: Final = "Cancelled: the chat ended in an error before a result was there."
CUT_OFF_TEXT: Final = (
    "Outcome unknown: the chat ended in an error while this call ran. It may or may not have taken effect."
)
TIMED_OUT_TEXT: Final = "Timed out: no result arrived before the deadline. Whether the action happened is unknown."
NOT_APPROVED_TEXT: Final = "Not run: no person approved this call before its deadline."
DENIED_TEXT: Final = "Not run: the user did not approve this call."
UNKNOWN_TEXT: Final = (
    "Outcome unknown: the process that ran this call stopped before a result was recorded. "
    "It may or may not have taken effect."
)


def plan_calls(draft: Draft[StepFinished]) -> None:
    """Record each call before its tool starts, with the agent that asked for it: another one may answer next."""
    reply, starts = draft.trigger.reply, draft.trigger.starts
    asked_by = None if reply.origin is None else reply.origin.agent
    status = {True: CallStatus.started, False: CallStatus.planned}
    draft.put_calls(*(replace(call, agent=asked_by, status=status[call.call_id in starts]) for call in reply.calls))


def start_call(draft: Draft[CallStarted]) -> None:
    """Record that the call starts, before it does."""
    draft.put_calls(_known(draft, draft.trigger.call_id).with_status(CallStatus.started))


def finish_call(draft: Draft[CallFinished]) -> None:
    """Append the call's result as a message of its own."""
    outcome = draft.trigger.outcome
    if outcome.is_error and _known(draft, outcome.call_id).answers:
        draft.turn = replace(draft.turn, refused=draft.turn.refused + 1)
    _answer(draft, outcome)


def conclude_tools(draft: Draft[Trigger]) -> None:
    """Note that every local call of the step has its result."""
    draft.step = draft.step.moved_to(Stage.done)


def ask_client(draft: Draft[Trigger]) -> None:
    """Set the deadlines of the open client calls, and show these calls, if there are any."""
    default = draft.limits.action_deadline
    for call in draft.calls:
        if call.open and call.is_client and call.deadline is None:
            timed = call.asked_at(draft.now, default)
            if timed.deadline is not None:
                draft.put_calls(timed)
                draft.writes.append(NoteDeadline(timed.call_id, timed.deadline))
    if draft.calls.open_client:
        draft.events.append(ActionRequiredEvent(calls=draft.calls.asked_of_client))


def record_results(draft: Draft[SubmitToolResults]) -> None:
    """Append the client's or a subagent's results, with the proof of each; an approved call waits for a worker."""
    for subagent in draft.trigger.subagents:
        draft.writes.append(NoteSubagent(subagent.chat_id, subagent.version, subagent.head))
        draft.turn = replace(draft.turn, subagents_usage=draft.turn.subagents_usage + subagent.usage)
        draft.subagents_usage += subagent.usage
        others = [one for one in draft.background if one != subagent.chat_id]
        draft.background = (*others, subagent.chat_id) if subagent.owes else (*others,)
    receipt_id = f"{draft.before.chat_id}-r{draft.version}"
    for result in draft.trigger.results:
        salt = draft.salt_of("answer", result.call_id)
        answer_digest = guarded(salt, result.digest)
        answer = Answer(answer_digest, receipt_id, draft.now, salt)
        call = _known(draft, result.call_id)
        if call.approval == "asked" and result.approves:
            draft.put_calls(call.granted(answer, draft.trigger.edited.get(call.call_id)))
            draft.step = replace(draft.step, stage=Stage.acting)
        elif call.approval == "asked":
            _answer(draft, _denial(result, answer))
        else:
            status = CallStatus.failed if result.is_error else CallStatus.succeeded
            outcome = CallOutcome(
                call_id=call.call_id,
                status=status,
                output=result.output,
                is_error=result.is_error,
                attachments=result.attachments,
                answer=answer,
            )
            _answer(draft, outcome)
    _note_wait(draft)


def time_out_due_calls(draft: Draft[Trigger]) -> None:
    """Answer every call whose deadline has passed. One that waits for approval has certainly not run."""
    for call in draft.calls:
        if call.is_due(draft.now):
            text = NOT_APPROVED_TEXT if call.approval == "asked" else TIMED_OUT_TEXT
            _close(draft, call, CallStatus.timed_out, text)
    _note_wait(draft)


def give_up_started_calls(draft: Draft[Trigger]) -> None:
    """Answer each started at-most-once call with `unknown`: it may have happened and must not run again.

    A call whose tool can be asked (`reconcile`) is left: the next holder asks first. Once `MOST_LOST` workers went with
    calls of the step, every started call is answered: one of them may be what ends the workers.
    """
    started = [call for call in draft.calls if call.status is CallStatus.started]
    if started:
        draft.step = replace(draft.step, lost=draft.step.lost + 1)
    for call in started:
        runs_once = call.crash == "at_most_once" and not call.reconciles
        if runs_once or draft.step.lost >= MOST_LOST:
            _close(draft, call, CallStatus.unknown, UNKNOWN_TEXT)


def close_open_calls(draft: Draft[Trigger]) -> None:
    """Answer every open call: none of them will run."""
    for call in draft.calls:
        if not call.open:
            continue
        if draft.before.state is ChatState.interrupted:
            _close(draft, call, CallStatus.interrupted, INTERRUPTED_TEXT)
        elif call.status is CallStatus.started:
            _close(draft, call, CallStatus.unknown, CUT_OFF_TEXT)
        else:
            _close(draft, call, CallStatus.cancelled, ABANDONED_TEXT)


def cancel_open_calls(draft: Draft[Trigger]) -> None:
    """Close the calls whose messages an edit has cut: they need no result any more."""
    draft.put_calls(*(call.with_status(CallStatus.cancelled) for call in draft.calls if call.open))


def _note_wait(draft: Draft[Trigger]) -> None:
    """Note how long the client was awaited, once it is no more."""
    answered = draft.before.calls.open_client and not draft.calls.open_client
    if answered and draft.before.since is not None:
        draft.turn = draft.turn.having_waited(since=draft.before.since, until=draft.now)


def _denial(result: ToolResult, answer: Answer) -> CallOutcome:
    reason = result.output.get("reason") if isinstance(result.output, dict) else None
    text = f"{DENIED_TEXT} Reason: {reason}" if isinstance(reason, str) and reason else DENIED_TEXT
    return CallOutcome(call_id=result.call_id, status=CallStatus.cancelled, output=text, is_error=True, answer=answer)


def _close(draft: Draft[Trigger], call: ToolCall, status: CallStatus, text: str) -> None:
    outcome = CallOutcome(
        call_id=call.call_id, status=status, output=text, is_error=status is not CallStatus.interrupted, synthetic=True
    )
    _answer(draft, outcome)


def _answer(draft: Draft[Trigger], outcome: CallOutcome) -> None:
    call = _known(draft, outcome.call_id)
    output = within(outcome.output, call.output_limit_bytes)
    draft.put_calls(call.with_status(outcome.status, outcome.answer))
    part = ToolResultPart(
        call_id=call.call_id,
        name=call.name,
        output=output,
        is_error=outcome.is_error,
        outcome=outcome.status,
        attachments=outcome.attachments,
        edited_arguments=call.arguments if call.asked_arguments is not None else None,
    )
    draft.turn = replace(draft.turn, has_results=True)
    draft.append("tool", (part,), tail=Tail.awaits_answer, call_index=call.index, synthetic=outcome.synthetic)
    draft.events.append(
        ToolResultEvent(
            step=call.step,
            call_id=call.call_id,
            index=call.index,
            name=call.name,
            output=output,
            is_error=outcome.is_error,
            outcome=outcome.status,
        )
    )


def _known(draft: Draft[Trigger], call_id: str) -> ToolCall:
    call = draft.calls.get(call_id)
    assert call is not None, "guards and refusals have asked for it"  # noqa: S101 - for the type checker, above all
    return call
