"""Guards: named questions about the facts and what a trigger brings. Pure, total, without side effects."""

from __future__ import annotations

from turnwise.states.arguments import Arguments
from turnwise.states.budgets import (
    compaction_is_on,
    may_compact,
    stop_after_succeeded,
    wants_compaction,
    why_spent,
)
from turnwise.states.errors import CONTEXT_OVERFLOW
from turnwise.states.facts import Facts
from turnwise.states.invariants import broken_promises
from turnwise.states.names import CallStatus, Need, Stage, Tail


def settled(facts: Facts, arguments: Arguments) -> bool:
    """Nothing of an interrupted attempt is left to commit."""
    return facts.settled


def unleased(facts: Facts, arguments: Arguments) -> bool:
    """No worker holds the chat."""
    return facts.lease is None


def queue_waits(facts: Facts, arguments: Arguments) -> bool:
    """The queue holds a message."""
    return bool(facts.queue)


def wants_interrupt(facts: Facts, arguments: Arguments) -> bool:
    """The message came with `when_busy="interrupt"`."""
    return arguments.get("when_busy") == "interrupt"


def promotion_waits(facts: Facts, arguments: Arguments) -> bool:
    """The queue holds a message that shall become a turn as soon as the interrupt is settled."""
    return facts.promote and bool(facts.queue)


def history_unfinished(facts: Facts, arguments: Arguments) -> bool:
    """The history awaits an answer or ends in a partial one."""
    return facts.history.unfinished


def something_to_compact(facts: Facts, arguments: Arguments) -> bool:
    """The model sees at least one message since the last boundary."""
    return facts.history.foldable > 0


def tools_unfinished(facts: Facts, arguments: Arguments) -> bool:
    """The local calls of the last step are not concluded."""
    return facts.step.stage is Stage.acting


def has_local_calls(facts: Facts, arguments: Arguments) -> bool:
    """The reply asks for at least one local tool."""
    return any(call.is_local for call in arguments["reply"].calls)


def has_client_calls(facts: Facts, arguments: Arguments) -> bool:
    """The reply asks for at least one client tool."""
    return any(call.is_client for call in arguments["reply"].calls)


def call_may_start(facts: Facts, arguments: Arguments) -> bool:
    """The call is a local one that has not started, or one that may safely run again."""
    call = facts.calls.get(arguments["call_id"])
    if call is None or not call.is_local:
        return False
    return call.status is CallStatus.planned or (call.status is CallStatus.started and call.crash == "at_least_once")


def call_lacks_result(facts: Facts, arguments: Arguments) -> bool:
    """The outcome is that of an open local call."""
    call = facts.calls.get(arguments["outcome"].call_id)
    return call is not None and call.is_local and call.open


def local_calls_open(facts: Facts, arguments: Arguments) -> bool:
    """A local call of the current step lacks its result."""
    return facts.calls.open_local > 0


def client_calls_open(facts: Facts, arguments: Arguments) -> bool:
    """A client call of the current step lacks its result."""
    return facts.calls.open_client > 0


def compaction_due(facts: Facts, arguments: Arguments) -> bool:
    """The step owes a compaction, or its reply shows that the context has crossed the threshold."""
    if facts.compaction.need is not Need.none:
        return True
    reply = arguments.get("reply")
    return reply is not None and may_compact(facts) and wants_compaction(reply, arguments["limits"])


def prompt_too_long(facts: Facts, arguments: Arguments) -> bool:
    """The provider refused the prompt as too long."""
    error = arguments.get("error")
    return error is not None and error.kind == CONTEXT_OVERFLOW


def room_can_be_made(facts: Facts, arguments: Arguments) -> bool:
    """There is something to fold, the step was not compacted before, and compaction is not switched off."""
    compacted = facts.compaction.step == facts.step.number
    return not compacted and facts.history.foldable > 0 and compaction_is_on(arguments["limits"])


def prompt_refused(facts: Facts, arguments: Arguments) -> bool:
    """The step waits for room: the provider refused its prompt as too long."""
    return facts.step.stage is Stage.refused


def turn_over(facts: Facts, arguments: Arguments) -> bool:
    """A stop-after tool succeeded, or the turn's budget of steps, tokens or time is spent."""
    if stop_after_succeeded(facts.calls):
        return True
    begun = facts.step.stage in (Stage.asking, Stage.refused)
    return not begun and why_spent(facts.turn, arguments["limits"], arguments["now"]) is not None


def turn_goes_on(facts: Facts, arguments: Arguments) -> bool:
    """After the compaction the model is asked again: it must go on from results, or is given the summary once."""
    if facts.compaction.need is Need.requested or turn_over(facts, arguments):
        return False
    if facts.history.tail is Tail.awaits_answer or facts.step.stage is Stage.refused:
        return True
    limits = arguments["limits"]
    folded = "summary" in arguments
    return folded and limits.after_final_step == "continue" and facts.turn.reentries < limits.max_reentries


def call_is_due(facts: Facts, arguments: Arguments) -> bool:
    """The deadline of an open client call has passed."""
    return any(call.is_due(arguments["now"]) for call in facts.calls)


def every_call_is_due(facts: Facts, arguments: Arguments) -> bool:
    """No call stays open once the due ones are answered."""
    return all(call.is_due(arguments["now"]) for call in facts.open_calls)


def promise_broken(facts: Facts, arguments: Arguments) -> bool:
    """The stored facts break the promise of their state."""
    return bool(broken_promises(facts))
