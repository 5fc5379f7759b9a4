"""Guards: named questions about a draft that no action has changed yet. Pure, total, without side effects."""

from __future__ import annotations

from msgspec.structs import replace

from turnwise.states import triggers as t
from turnwise.states import turn_limits
from turnwise.states.calls import ToolCall
from turnwise.states.draft import Draft
from turnwise.states.facts import TurnFacts
from turnwise.states.invariants import broken_invariants
from turnwise.states.model_errors import CONTEXT_OVERFLOW
from turnwise.states.names import Need, Stage
from turnwise.states.usage import reported


def settled(draft: Draft[t.Trigger]) -> bool:
    """Nothing of an interrupted attempt is left to commit."""
    return draft.settled


def unsettled(draft: Draft[t.Trigger]) -> bool:
    """Something of an interrupted attempt is left to commit."""
    return not draft.settled


def unleased(draft: Draft[t.Trigger]) -> bool:
    """No worker holds the chat."""
    return draft.lease is None


def leased(draft: Draft[t.Trigger]) -> bool:
    """A worker holds the chat."""
    return draft.lease is not None


def archived(draft: Draft[t.Trigger]) -> bool:
    """The chat is archived."""
    return draft.archived


def queue_waits(draft: Draft[t.Trigger]) -> bool:
    """The queue holds a message."""
    return bool(draft.queue)


def queue_is_empty(draft: Draft[t.Trigger]) -> bool:
    """The queue holds no message."""
    return not draft.queue


def wants_interrupt(draft: Draft[t.SendMessage]) -> bool:
    """The message came with `when_busy="interrupt"`."""
    return draft.trigger.when_busy == "interrupt"


def something_scheduled(draft: Draft[t.Trigger]) -> bool:
    """A message is scheduled."""
    return bool(draft.schedules)


def schedule_is_due(draft: Draft[t.ScheduleFired]) -> bool:
    """The message is scheduled, and its time has come."""
    message = draft.trigger.message
    return message.due <= draft.now and message in draft.schedules


def is_skipped(draft: Draft[t.ScheduleFired]) -> bool:
    """The message came with `when_busy="skip"`, or the one of its series before it still waits."""
    message = draft.trigger.message
    waits = any(queued.wakeup and queued.wakeup.schedule == message.id for queued in draft.queue)
    return message.when_busy == "skip" or (waits and message.every is not None)


def queue_has_room(draft: Draft[t.Trigger]) -> bool:
    """The queue takes another message."""
    return len(draft.queue) < draft.limits.queue_limit


def promotion_waits(draft: Draft[t.Trigger]) -> bool:
    """The queue holds a message that shall become a turn as soon as the interrupt is settled."""
    return draft.promote and bool(draft.queue)


def history_unfinished(draft: Draft[t.Trigger]) -> bool:
    """The history awaits an answer or ends in a partial one."""
    return draft.history.unfinished


def something_said(draft: Draft[t.Trigger]) -> bool:
    """The user has sent a message: a turn has started, here or in the history that the chat inherited."""
    return draft.turn.number > 0


def something_to_compact(draft: Draft[t.Trigger]) -> bool:
    """The model sees at least one message since the last boundary."""
    return draft.history.foldable > 0


def tools_unfinished(draft: Draft[t.Trigger]) -> bool:
    """The local calls of the last step are not concluded."""
    return draft.step.stage is Stage.acting


def has_local_calls(draft: Draft[t.StepFinished]) -> bool:
    """The reply asks for at least one local tool."""
    return any(call.is_local for call in draft.trigger.reply.calls)


def has_outside_calls(draft: Draft[t.StepFinished]) -> bool:
    """The reply asks for at least one tool of the client, or one subagent."""
    return any(not call.is_local for call in draft.trigger.reply.calls)


def call_may_start(draft: Draft[t.CallStarted]) -> bool:
    """The call is a local one that has not started, that may safely run again, or whose tool says it was not done."""
    call = draft.calls.get(draft.trigger.call_id)
    return call is not None and (call.may_start or (draft.trigger.not_done and call.may_be_undone))


def call_lacks_result(draft: Draft[t.CallFinished]) -> bool:
    """The outcome is that of an open local call."""
    call = draft.calls.get(draft.trigger.outcome.call_id)
    return call is not None and call.is_local and call.open


def local_calls_done(draft: Draft[t.Trigger]) -> bool:
    """Every local call of the current step has its result."""
    return draft.calls.open_local == 0


def outside_calls_open(draft: Draft[t.Trigger]) -> bool:
    """A call that the client or a subagent answers lacks its result."""
    return draft.calls.open_outside > 0


def client_awaited(draft: Draft[t.Trigger]) -> bool:
    """The client has to answer a call."""
    return draft.calls.open_client > 0


def awaits_more(draft: Draft[t.SubmitToolResults]) -> bool:
    """Once these results are there, calls of others stay open, and none that was allowed waits for a worker."""
    calls, results = draft.calls, draft.trigger.results
    allowed = any(result.approves and _asks(calls.get(result.call_id)) for result in results)
    return not allowed and calls.open_outside > len(results)


def compaction_due(draft: Draft[t.Trigger]) -> bool:
    """The step owes a compaction, or its reply shows that the context has crossed the threshold."""
    if draft.compaction.need is not Need.none:
        return True
    came, limits = draft.trigger, draft.limits
    if not isinstance(came, t.StepFinished):
        return False
    return turn_limits.may_compact(draft.before, limits) and turn_limits.wants_compaction(came.reply, limits)


def prompt_will_not_fit(draft: Draft[t.Claimed | t.ToolsFinished]) -> bool:
    """A step is about to begin whose prompt is estimated to be longer than the context window, and may be folded."""
    before, limits = draft.before, draft.limits
    begins = draft.step.stage in (Stage.done, Stage.acting)
    return begins and turn_limits.will_not_fit(before, limits) and turn_limits.may_compact(before, limits)


def prompt_fits(draft: Draft[t.AttemptDiscarded]) -> bool:
    """The attempt failed for another reason than the length of its prompt."""
    return draft.trigger.error.kind != CONTEXT_OVERFLOW


def room_can_be_made(draft: Draft[t.Trigger]) -> bool:
    """There is something to fold, the step was not compacted before, and compaction is not switched off."""
    return turn_limits.may_make_room(draft.before, draft.limits)


def next_model_waits(draft: Draft[t.FallbackStarted]) -> bool:
    """The agent has another model behind the one that failed."""
    return len(draft.turn.fallback_from) < draft.limits.fallbacks


def prompt_refused(draft: Draft[t.Trigger]) -> bool:
    """The step waits for room: the provider refused its prompt as too long."""
    return draft.step.stage is Stage.refused


def answer_refused(draft: Draft[t.StepFinished]) -> bool:
    """The answer lacks the form that the agent wants, and the turn's budgets allow another step after it."""
    if not draft.trigger.reply.refused:
        return False
    turn = replace(draft.turn, usage=draft.turn.usage + reported(draft.trigger.reply.usage))
    return turn_limits.why_spent(turn, draft.limits, draft.now) is None


def turn_over(draft: Draft[t.Trigger]) -> bool:
    """A stop-after tool succeeded, the turn's budget of steps, tokens or time is spent, or no call can be paid."""
    return _is_over(draft, draft.turn) or budget_short(draft)


def budget_short(draft: Draft[t.Trigger]) -> bool:
    """A budget of the chat or its owner leaves too little for another model call."""
    return turn_limits.shortage_of(draft.before, draft.at.funds) is not None


def call_affordable(draft: Draft[t.Trigger]) -> bool:
    """The budgets of the chat and its owner, if there are any, leave enough for another model call."""
    return not budget_short(draft)


def turn_goes_on(draft: Draft[t.Compacted | t.CompactionFailed]) -> bool:
    """After the compaction the model is asked again: to go on from results or, unless it helps, once with the summary.

    The answer of a subagent stands: its parent reads the last one.
    """
    turn = draft.turn
    if draft.trigger.usage is not None:
        turn = replace(turn, usage=turn.usage + draft.trigger.usage)
    if draft.compaction.need is Need.requested or _is_over(draft, turn):
        return False
    if draft.history.unfinished or draft.step.stage is Stage.refused:
        return True
    limits, folded = draft.limits, isinstance(draft.trigger, t.Compacted)
    reopens = limits.after_final_step == "continue" and draft.profile.parent_call is None
    return folded and reopens and draft.turn.reentries < limits.max_reentries


def call_is_due(draft: Draft[t.Trigger]) -> bool:
    """The deadline of an open client call has passed."""
    return any(call.is_due(draft.now) for call in draft.calls)


def every_call_is_due(draft: Draft[t.Trigger]) -> bool:
    """No call stays open once the due ones are answered."""
    return all(call.is_due(draft.now) for call in draft.before.open_calls)


def invariant_broken(draft: Draft[t.Trigger]) -> bool:
    """The stored facts break an invariant of their state."""
    return bool(broken_invariants(draft.before))


def _is_over(draft: Draft[t.Trigger], turn: TurnFacts) -> bool:
    if turn_limits.stop_after_succeeded(draft.calls):
        return True
    started = draft.step.stage in (Stage.asking, Stage.refused)
    return not started and turn_limits.why_spent(turn, draft.limits, draft.now) is not None


def _asks(call: ToolCall | None) -> bool:
    return call is not None and call.approval == "asked"
