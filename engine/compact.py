"""The job of `compacting`: fold the history into a summary and set the boundary."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from turnwise.engine.hold import Hold
from turnwise.engine.log import Log
from turnwise.engine.prompt import sendable, transient, unanswered
from turnwise.engine.request import request_of
from turnwise.engine.settings import SUMMARY_PREFIX, Budget, Folded
from turnwise.states.arguments import Summary
from turnwise.states.errors import ModelError
from turnwise.states.events import ErrorInfo
from turnwise.states.messages import Message
from turnwise.states.names import Trigger
from turnwise.states.usage import Usage

_log = Log("turnwise.jobs")


async def compact(hold: Hold) -> None:
    """Summarise what the model sees; a failure is reported and changes nothing."""
    if not hold.attempt_is_begun:
        await hold.fire(lambda chain: chain.fire(Trigger.attempt_started, token=hold.token))
    history = (await hold.current_view()).messages
    kept = _kept(hold, history)
    usage: Usage | None = None
    try:
        folded = await _fold(hold, history, kept)
        usage = folded.usage
        summary = _summary_of(history, folded, kept)
    except ModelError as failure:
        _log.warning("compaction_failed", chat_id=hold.chat_id, step=hold.facts.step.number, kind=failure.kind)
        error = ErrorInfo(
            kind=failure.kind, message=failure.message, step=hold.facts.step.number, status=failure.status
        )
        await hold.fire(lambda chain: chain.fire(Trigger.compaction_failed, token=hold.token, error=error, usage=usage))
        return
    await hold.fire(lambda chain: chain.fire(Trigger.compacted, token=hold.token, summary=summary, usage=usage))


def _kept(hold: Hold, history: Sequence[Message]) -> set[int]:
    """Return the positions of what is not folded: user messages without an answer, a step with open calls."""
    kept = set(unanswered(history))
    if hold.facts.open_calls:
        step = hold.facts.step.number
        kept.update(message.position for message in history if message.step == step)
    return kept


async def _fold(hold: Hold, history: Sequence[Message], kept: set[int]) -> Folded:
    policy, clock = hold.desk.settings.compaction, hold.desk.clock
    to_fold = [message for message in history if message.position not in kept]
    strategy = policy.strategy or (lambda _messages, _budget: _summarise(hold, to_fold))
    known = hold.facts.compaction
    budget = Budget(context_tokens=known.context_tokens, context_limit=known.context_limit, compactions=known.count)
    with anyio.CancelScope() as scope:
        timer = clock.call_later(policy.timeout, scope.cancel)
        try:
            folded = await strategy(tuple(history), budget)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                "bad_request", message=f"the compaction failed: {type(error).__name__}: {error}"
            ) from error
        finally:
            timer.cancel()
        if folded is None:
            raise ModelError("bad_request", message="nothing was folded")
        return folded
    raise ModelError("network", message=f"no summary within {policy.timeout:g} s")


async def _summarise(hold: Hold, messages: Sequence[Message]) -> Folded:
    policy = hold.desk.settings.compaction
    model = policy.model or hold.desk.model
    asked = sendable(messages)
    if not asked:
        raise ModelError("bad_request", message="there was nothing to fold")
    asked.append(transient("user", policy.prompt, asked[-1]))
    request = request_of(hold, "summary", asked)
    with hold.desk.observers.model_call(model, request) as call:
        reply = await model.generate(request)
        if call is not None:
            call.reply = reply
    text = reply.text.strip()
    return Folded(
        messages=[transient("user", SUMMARY_PREFIX + text, messages[-1])] if text else [],
        usage=reply.usage,
    )


def _summary_of(history: Sequence[Message], folded: Folded, kept: set[int]) -> Summary:
    """Return the summary with what is carried: what had to be kept, and what the strategy kept."""
    chosen = {message.position for message in folded.messages if message.position}
    carried = _with_partners(history, kept | chosen)
    text = "\n\n".join(message.text for message in folded.messages if not message.position)
    if not text.strip():
        raise ModelError("bad_request", message="the summary was empty")
    return Summary(
        text=text,
        carried=tuple(sorted(carried)),
        folded=len(history) - len(carried),
        awaits_answer=bool(unanswered(history)),
    )


def _with_partners(history: Sequence[Message], carried: set[int]) -> set[int]:
    """Return the positions to carry so that no call is parted from its result."""
    together: dict[str, set[int]] = {}
    for message in history:
        ids = [call.call_id for call in message.calls] + ([message.result.call_id] if message.result else [])
        for call_id in ids:
            together.setdefault(call_id, set()).add(message.position)
    whole = set(carried)
    while True:
        grown = whole.union(*(partners for partners in together.values() if partners & whole))
        if grown == whole:
            return whole
        whole = grown
