"""Guards: named questions about the facts and what a trigger brings. Pure, total, without side effects."""

from __future__ import annotations

from turnwise.states.arguments import Arguments
from turnwise.states.facts import Facts, Limits, TurnFacts
from turnwise.states.invariants import broken_promises
from turnwise.states.names import CallStatus, Need, Stage, StopReason, Tail


def settled(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """Nothing of an interrupted attempt is left to commit."""
    return facts.settled


def unleased(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """No worker holds the chat."""
    return facts.lease is None


def queue_waits(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The queue holds a message."""
    return bool(facts.queue)


def wants_interrupt(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The message came with `when_busy="interrupt"`."""
    return arguments.get("when_busy") == "interrupt"


def promote_asked(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The head of the queue shall become a turn once settled."""
    return facts.promote


def history_unfinished(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The history awaits an answer or ends in a partial one."""
    return facts.history.tail in (Tail.awaits_answer, Tail.partial)


def something_to_compact(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The model sees at least one message since the last boundary."""
    return facts.history.foldable > 0


def tools_unfinished(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The local calls of the last step are not concluded."""
    return facts.step.stage is Stage.acting


def has_local_calls(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The reply asks for at least one local tool."""
    return any(call.is_local for call in arguments["reply"].calls)


def has_client_calls(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The reply asks for at least one client tool."""
    return any(call.is_client for call in arguments["reply"].calls)


def client_calls_open(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """A client call of the current step lacks its result."""
    return any(call.open and call.is_client for call in facts.calls)


def compaction_due(facts: Facts, arguments: Arguments) -> bool:
    """The context has crossed its threshold, or a compaction was asked for, and this step has none yet."""
    if facts.compaction.need is not Need.none:
        return True
    reply = arguments.get("reply")
    if reply is None or reply.context_tokens is None:
        return False
    if facts.compaction.step == facts.step.number or facts.turn.compacts_no_more or facts.compaction.unproven:
        return False
    return over_threshold(reply.context_tokens, reply.context_limit, arguments["limits"])


def turn_over(facts: Facts, arguments: Arguments) -> bool:
    """A stop-after tool succeeded, or the turn's budget of steps, tokens or time is spent."""
    if any(call.stop_after and call.status is CallStatus.succeeded for call in facts.calls):
        return True
    return facts.step.stage is not Stage.asking and spent_budget(facts.turn, arguments) is not None


def turn_goes_on(facts: Facts, arguments: Arguments) -> bool:
    """After the compaction the model is asked again: it must go on from results, or is given the summary once."""
    if facts.compaction.need is Need.requested or turn_over(facts, arguments):
        return False
    if facts.history.tail is Tail.awaits_answer:
        return True
    limits = arguments["limits"]
    folded = arguments.get("summary") is not None
    return folded and limits.after_final_step == "continue" and facts.turn.reentries < limits.max_reentries


def call_is_due(facts: Facts, arguments: Arguments) -> bool:
    """The deadline of an open client call has passed."""
    now = arguments["now"]
    return any(call.open and call.deadline is not None and call.deadline <= now for call in facts.calls)


def every_call_is_due(facts: Facts, arguments: Arguments) -> bool:
    """No call stays open once the due ones are answered."""
    now = arguments["now"]
    return all(call.deadline is not None and call.deadline <= now for call in facts.calls if call.open)


def promise_broken(facts: Facts, arguments: Arguments) -> bool:  # noqa: ARG001
    """The stored facts break the promise of their state."""
    return bool(broken_promises(facts))


def over_threshold(tokens: int, limit: int | None, limits: Limits) -> bool:
    """Return whether `tokens` of context reach the threshold; an unknown limit is never reached."""
    limit = limits.context_limit if limit is None or limits.context_limit == 0 else limit
    if not limit or limits.threshold_percent >= 100:  # noqa: PLR2004 - percent
        return False
    return tokens * 100 >= limits.threshold_percent * limit


def spent_budget(turn: TurnFacts, arguments: Arguments) -> StopReason | None:
    """Return the budget that keeps the turn from another step, if one is spent."""
    limits = arguments["limits"]
    if limits.max_steps is not None and turn.steps >= limits.max_steps:
        return StopReason.max_steps
    if limits.turn_tokens is not None:
        spent = (turn.usage.input_tokens or 0) + (turn.usage.output_tokens or 0)
        if spent >= limits.turn_tokens:
            return StopReason.token_budget
    if limits.turn_seconds is not None and turn.started_at is not None:
        lasted = (arguments["now"] - turn.started_at).total_seconds()
        if lasted >= limits.turn_seconds:
            return StopReason.time_budget
    return None
