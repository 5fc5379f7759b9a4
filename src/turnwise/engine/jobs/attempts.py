"""Attempts at a step or a summary: started when due, discarded after a retryable failure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from turnwise.engine.blobs.loaded import newly_refused
from turnwise.engine.isolation.clock import sleep
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.jobs.retries import RetryDecision
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.logger import logger
from turnwise.providers.protocol import Model
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import MOST_LOST, Facts, StepFacts
from turnwise.states.left_out import LeftOut
from turnwise.states.messages import ModelFailure
from turnwise.states.model_errors import ModelError
from turnwise.states.triggers import AttemptDiscarded, AttemptStarted, FallbackStarted
from turnwise.states.usage import Usage
from turnwise.states.values.plain import well_formed


class Attempts:
    """The attempts of a chat at its step or summary."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased
        self._asked: Facts | None = None
        """The facts that chose the model."""

    async def begin(self) -> HeldAttempt:
        """Start the next attempt, once it is due, unless this holder has started it."""
        await self.wait_for_retry()
        await self._refresh_tools()
        if self._leased.attempt is None or not self._leased.facts.step.attempt_open:
            await self._leased.fire(partial(self._leased.go_on, AttemptStarted(token=self._leased.token)))
        if self._leased.attempt is None or not self._leased.runtime.agents.can_run(self._leased.facts):
            raise ConcurrentTransition  # another worker has taken over, or has to
        self._leased.configure()
        self._asked = self._leased.facts
        return self._leased.attempt

    async def _refresh_tools(self) -> None:
        """Refresh the sources of the agent's tools; a source that fails keeps its tools."""
        runtime = self._leased.runtime
        for source in runtime.agents.sources_of(self._leased.facts.profile.agent):
            try:
                await runtime.tasks.user_calls.run(source.refresh, "refresh of tools", chat_id=self._leased.chat_id)
            except Exception as error:  # noqa: BLE001 - user code
                logger.exception("refresh_failed", error=error)

    def may_fall_back(self, failure: ModelError) -> bool:
        """Whether the agent has another model to ask after such a failure."""
        configuration = self._leased.configuration
        return bool(configuration.fallbacks) and failure.kind in configuration.settings.retry.fallback_on

    async def fall_back(self, failure: ModelError, error: ErrorInfo, *, usage: Usage | None, paid: bool) -> None:
        """Discard the attempt; the next one, at the agent's next model, begins at once."""
        configuration = self._leased.configuration
        model, (following, _) = configuration.model, configuration.fallbacks[0]
        failed = ModelFailure(
            provider=well_formed(str(model.provider)),
            model=well_formed(str(model.name)),
            kind=failure.kind,
            status=failure.status,
            retry_after=failure.retry_after,
        )
        started = FallbackStarted(
            token=self._leased.token,
            failure=failed,
            error=error,
            next_model=well_formed(str(following.name)),
            paid=paid,
            usage=usage,
        )
        discarded = AttemptDiscarded(token=self._leased.token, error=error, delay=0, paid=paid, usage=usage)
        await self._leased.fire(partial(self._start_fallback, started, discarded))

    def _start_fallback(self, started: FallbackStarted, discarded: AttemptDiscarded, unit: UnitOfWork) -> None:
        """Ask the next model; if the chat has got other models meanwhile, ask the first of those."""
        if self._asked is not None and _models_of(unit.facts) == _models_of(self._asked):
            unit.fire(started)
        else:
            _discard(discarded, unit)

    def failed_before(self, kind: str) -> Sequence[ModelFailure]:
        """Return the models that are asked again after such a failure of the last one; none if only that one is."""
        is_declared = kind in self._leased.configuration.settings.retry.fallback_on
        return self._leased.facts.turn.fallback_from if is_declared else ()

    async def try_again(self, retry: RetryDecision, error: ErrorInfo, *, usage: Usage | None, paid: bool) -> None:
        """Discard the attempt; the next one may begin after the decision's delay."""
        delay, step, failure = retry.delay or 0.0, self._leased.facts.step, retry.error
        logger.info(
            "attempt_retried",
            step=step.number,
            attempt=step.attempt,
            purpose=step.purpose,
            delay=delay,
            kind=error.kind,
            status=error.status,
            paid=paid,
        )
        discarded = AttemptDiscarded(
            token=self._leased.token,
            error=error,
            delay=delay,
            paid=paid,
            timed_out=failure.timed_out,
            rejected_as=failure.finish_reason,
            from_first=retry.from_first,
            usage=usage,
        )
        await self._leased.fire(partial(_discard, discarded))

    async def leave_out(self, error: ErrorInfo, refused: Sequence[LeftOut], *, usage: Usage | None) -> None:
        """Discard the attempt; the next one begins at once, without the refused content."""
        for one in refused:
            logger.warning("content_left_out", message_id=one.message_id, part=one.part, problem=error.message)
        discarded = AttemptDiscarded(
            token=self._leased.token, error=error, delay=0, usage=usage, left_out=tuple(refused)
        )
        await self._leased.fire(partial(_discard, discarded))

    async def refused_in(self, error: ModelError, model: Model) -> Sequence[LeftOut]:
        """Return the parts of the chat's messages that a failure newly refuses, if they can be left out."""
        if not error.refused:
            return ()
        try:
            view = await self._leased.current_view()
        except ConcurrentTransition:  # if the chat is another worker's, the commit of the failure finds that out
            return ()
        return newly_refused(error, model, view.messages, self._leased.facts)

    async def wait_for_retry(self) -> None:
        """Wait until the next attempt may begin."""
        step, last = self._leased.facts.step, self._leased.last_commit
        if step.retry_at is not None and last is not None:
            # Both times are the database's, whose clock may have been set: `retry_delay` bounds the wait.
            left = min((step.retry_at - last.at).total_seconds(), step.retry_delay)
            await sleep(self._leased.runtime.clock, left - (self._leased.runtime.clock.monotonic() - last.ended))


def refuse_endless_attempts(step: StepFacts) -> None:
    """Raise a `ModelError` after `MOST_LOST` attempts were lost with their workers: the reply itself may end them."""
    if step.lost >= MOST_LOST:
        message = f"{step.lost} attempts of this step were lost with the workers that ran them; it is not tried again"
        raise ModelError("server_error", retryable=False, message=message)


def _discard(discarded: AttemptDiscarded, unit: UnitOfWork) -> None:
    unit.fire(replace(discarded, retry_at=unit.now + timedelta(seconds=discarded.delay or 0)))


def _models_of(facts: Facts) -> tuple[object, ...]:
    return facts.profile.agent, facts.profile.model, facts.turn.fallback_from
