"""Guards: named questions about the facts and a trigger's arguments. Pure, total, without side effects."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states import triggers as t
from turnwise.states import turn_limits
from turnwise.states.calls import ToolCall
from turnwise.states.errors import CONTEXT_OVERFLOW
from turnwise.states.facts import Facts, TurnFacts
from turnwise.states.names import Need, Stage, Tail
from turnwise.states.promises import broken_promises
from turnwise.states.usage import reported


def settled(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """Nothing of an interrupted attempt is left to commit."""
    return facts.settled


def unleased(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """No worker holds the chat."""
    return facts.lease is None


def archived(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The chat is archived."""
    return facts.archived


def queue_waits(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The queue holds a message."""
    return bool(facts.queue)


def wants_interrupt(facts: Facts, occurrence: t.SendMessage, at: t.Circumstances) -> bool:
    """The message came with `when_busy="interrupt"`."""
    return occurrence.when_busy == "interrupt"


def promotion_waits(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The queue holds a message that shall become a turn as soon as the interrupt is settled."""
    return facts.promote and bool(facts.queue)


def history_unfinished(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The history awaits an answer or ends in a partial one."""
    return facts.history.unfinished


def something_said(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The user has said something: a turn was begun, here or in what the chat began with."""
    return facts.turn.number > 0


def something_to_compact(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The model sees at least one message since the last boundary."""
    return facts.history.foldable > 0


def tools_unfinished(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The local calls of the last step are not concluded."""
    return facts.step.stage is Stage.acting


def has_local_calls(facts: Facts, occurrence: t.StepFinished, at: t.Circumstances) -> bool:
    """The reply asks for at least one local tool."""
    return any(call.is_local for call in occurrence.reply.calls)


def has_outside_calls(facts: Facts, occurrence: t.StepFinished, at: t.Circumstances) -> bool:
    """The reply asks for at least one tool of the client, or one helper."""
    return any(not call.is_local for call in occurrence.reply.calls)


def call_may_start(facts: Facts, occurrence: t.CallStarted, at: t.Circumstances) -> bool:
    """The call is a local one that has not started, that may safely run again, or whose tool says it was not done."""
    call = facts.calls.get(occurrence.call_id)
    return call is not None and (call.may_start or (occurrence.not_done and call.may_be_undone))


def call_lacks_result(facts: Facts, occurrence: t.CallFinished, at: t.Circumstances) -> bool:
    """The outcome is that of an open local call."""
    call = facts.calls.get(occurrence.outcome.call_id)
    return call is not None and call.is_local and call.open


def local_calls_open(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """A local call of the current step lacks its result."""
    return facts.calls.open_local > 0


def outside_calls_open(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """A call that the client or a helper answers lacks its result."""
    return facts.calls.open_outside > 0


def client_awaited(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The client has to answer a call."""
    return facts.calls.open_client > 0


def awaits_more(facts: Facts, occurrence: t.SubmitToolResults, at: t.Circumstances) -> bool:
    """Once these results are there, calls of others stay open, and none that was allowed waits for a worker."""
    calls, results = facts.calls, occurrence.results
    allowed = any(result.approves and _asks(calls.get(result.call_id)) for result in results)
    return not allowed and calls.open_outside > len(results)


def compaction_due(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The step owes a compaction, or its reply shows that the context has crossed the threshold."""
    if facts.compaction.need is not Need.none:
        return True
    if not isinstance(occurrence, t.StepFinished):
        return False
    return turn_limits.may_compact(facts, at.limits) and turn_limits.wants_compaction(occurrence.reply, at.limits)


def prompt_too_long(facts: Facts, occurrence: t.AttemptDiscarded, at: t.Circumstances) -> bool:
    """The provider refused the prompt as too long."""
    return occurrence.error.kind == CONTEXT_OVERFLOW


def room_can_be_made(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """There is something to fold, the step was not compacted before, and compaction is not switched off."""
    return turn_limits.may_make_room(facts, at.limits)


def prompt_refused(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The step waits for room: the provider refused its prompt as too long."""
    return facts.step.stage is Stage.refused


def answer_refused(facts: Facts, occurrence: t.StepFinished, at: t.Circumstances) -> bool:
    """The answer lacks the form that the agent wants, and the turn's budgets allow another step after it."""
    if not occurrence.reply.refused:
        return False
    turn = replace(facts.turn, usage=facts.turn.usage + reported(occurrence.reply.usage))
    return turn_limits.why_spent(turn, at.limits, at.now) is None


def turn_over(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """A stop-after tool succeeded, or the turn's budget of steps, tokens or time is spent."""
    return _is_over(facts, facts.turn, at)


def turn_goes_on(facts: Facts, occurrence: t.Compacted | t.CompactionFailed, at: t.Circumstances) -> bool:
    """After the compaction the model is asked again: to go on from results or, unless it helps, once with the summary.

    The answer of a helper stands: its parent hears what is said last.
    """
    turn = facts.turn
    if occurrence.usage is not None:
        turn = replace(turn, usage=turn.usage + occurrence.usage)
    if facts.compaction.need is Need.requested or _is_over(facts, turn, at):
        return False
    if facts.history.tail is Tail.awaits_answer or facts.step.stage is Stage.refused:
        return True
    limits, folded = at.limits, isinstance(occurrence, t.Compacted)
    reopens = limits.after_final_step == "continue" and facts.profile.helps is None
    return folded and reopens and facts.turn.reentries < limits.max_reentries


def call_is_due(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The deadline of an open client call has passed."""
    return any(call.is_due(at.now) for call in facts.calls)


def every_call_is_due(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """No call stays open once the due ones are answered."""
    return all(call.is_due(at.now) for call in facts.open_calls)


def promise_broken(facts: Facts, occurrence: t.Occurrence, at: t.Circumstances) -> bool:
    """The stored facts break the promise of their state."""
    return bool(broken_promises(facts))


def _is_over(facts: Facts, turn: TurnFacts, at: t.Circumstances) -> bool:
    if turn_limits.stop_after_succeeded(facts.calls):
        return True
    begun = facts.step.stage in (Stage.asking, Stage.refused)
    return not begun and turn_limits.why_spent(turn, at.limits, at.now) is not None


def _asks(call: ToolCall | None) -> bool:
    return call is not None and call.approval == "asked"
