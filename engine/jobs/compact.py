"""The job of `compacting`: fold the history into a summary and set the boundary."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from turnwise.engine.jobs.fold_history import summary_of
from turnwise.engine.jobs.reply import error_info
from turnwise.engine.jobs.summarise import Spending, in_time, summarise
from turnwise.engine.prompt.history import transient, unanswered
from turnwise.engine.settings import SUMMARY_PREFIX, CompactionInput, CompactionStrategy
from turnwise.engine.user_code import described
from turnwise.engine.worker.leased_chat import LeasedChat
from turnwise.states.arguments import Summary
from turnwise.states.errors import ModelError
from turnwise.states.messages import Message
from turnwise.states.names import Stage
from turnwise.states.triggers import AttemptDiscarded, AttemptStarted, Compacted, CompactionFailed


async def compact(hold: LeasedChat) -> None:
    """Summarise what the model sees; a failure is reported and changes nothing.

    Nothing is stored before all of it is folded: a worker that takes over begins anew. Where the step waits for room, a
    failure that may pass is tried again, on the schedule of every model call.
    """
    while True:
        await hold.wait_for_retry()
        if not hold.attempt_is_begun or not hold.facts.step.attempt_open:
            await hold.fire(lambda chain: chain.fire(AttemptStarted(token=hold.token)))
        spending = Spending()
        try:
            summary = await _fold(hold, spending)
            break
        except ModelError as failure:
            if not await _fail(hold, failure, spending):
                return
    await hold.fire(lambda chain: chain.fire(Compacted(token=hold.token, summary=summary, usage=spending.usage)))


async def _fold(hold: LeasedChat, spending: Spending) -> Summary:
    """Return what the model is to see from now on.

    Raises:
        ModelError: there is nothing better than what it sees now.
    """
    view = await hold.current_view()
    history, kept = tuple(view.messages), _kept(hold, view.messages)
    strategy = hold.desk.settings.compaction.strategy
    try:
        if strategy is not None:
            given = await _by_strategy(hold, strategy, history, spending)
        else:
            text = await summarise(hold, _to_summarise(hold, history, view.to_send(), kept), spending)
            given = [transient("user", SUMMARY_PREFIX + text, history[-1])]
        return summary_of(history, given, kept)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError("bad_request", message=f"the compaction failed: {described(error)}") from error


async def _by_strategy(
    hold: LeasedChat, strategy: CompactionStrategy, history: Sequence[Message], spending: Spending
) -> Sequence[Message]:
    known = hold.facts.compaction
    given = CompactionInput(
        context_tokens=known.context_tokens, context_limit=known.context_limit, compactions=known.count
    )
    folded = await in_time(hold, lambda: strategy(history, given))
    if folded is None:
        raise ModelError("bad_request", message="nothing was folded")
    if folded.usage is not None:
        spending.add(folded.usage)
    return folded.messages


async def _fail(hold: LeasedChat, failure: ModelError, spending: Spending) -> bool:
    """Commit that the attempt failed; return whether another one is due."""
    step, retry = hold.facts.step, hold.desk.settings.retry
    error = error_info(failure, step)
    if step.stage is Stage.refused and failure.retryable and retry.allows(step.failures + 1, step.broken):
        delay = retry.delay(step.failures + 1, failure.retry_after)
        await hold.fire(
            lambda chain: chain.fire(
                AttemptDiscarded(
                    token=hold.token,
                    error=error,
                    delay=delay,
                    retry_at=chain.now + timedelta(seconds=delay),
                    usage=spending.usage,
                )
            )
        )
        return True
    failed = CompactionFailed(token=hold.token, error=error, usage=spending.usage)
    await hold.fire(lambda chain: chain.fire(failed))
    return False


async def can_fold(hold: LeasedChat) -> bool:
    """Whether the model sees anything but what has to stay."""
    history = (await hold.current_view()).messages
    return len(_kept(hold, history)) < len(history)


def _kept(hold: LeasedChat, history: Sequence[Message]) -> set[int]:
    """Return the positions of what is not folded: user messages without an answer, a step with open calls."""
    return {*unanswered(history), *_open_step(hold, history)}


def _open_step(hold: LeasedChat, history: Sequence[Message]) -> set[int]:
    step = hold.facts.step.number if hold.facts.open_calls else None
    return {message.position for message in history if message.step == step and message.role != "user"}


def _to_summarise(
    hold: LeasedChat, history: Sequence[Message], sendable: Sequence[Message], kept: set[int]
) -> Sequence[Message]:
    """Return what is shown to who writes the summary: the prompt as it was, up to the last message that is folded.

    What is kept is among it where it stands before: the summary is about it. Calls without a result are not; where
    nothing else has been said since the user's words, the summary is of these alone.
    """
    still_open = _open_step(hold, history)
    folded = [place for place, message in enumerate(sendable) if message.position not in kept]
    if not folded and still_open:
        folded = [place for place, message in enumerate(sendable) if message.position not in still_open]
    last = max(folded, default=-1)
    return [message for message in sendable[: last + 1] if message.position not in still_open]
