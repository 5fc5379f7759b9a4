"""The job of `compacting`: fold the history into a summary and set the boundary."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from turnwise.engine.config.results import Spending
from turnwise.engine.config.settings import CompactionInput, CompactionResult, CompactionStrategy, Folding
from turnwise.engine.jobs.attempts import Attempts, refuse_endless_attempts
from turnwise.engine.jobs.endings import error_info
from turnwise.engine.jobs.fold_history import summary_of
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.jobs.request import Requests
from turnwise.engine.jobs.retries import decide_retry
from turnwise.engine.jobs.summarise import Summariser
from turnwise.engine.prompt.context import View
from turnwise.engine.prompt.history import SUMMARY_PREFIX, is_made, transient, unanswered
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.foreign import UserCodeError, described
from turnwise.logger import logger
from turnwise.providers.usage_and_prices import validate_usage
from turnwise.states.arguments import Summary
from turnwise.states.decide import job_of
from turnwise.states.errors import InvalidContent
from turnwise.states.messages import CHARACTERS_PER_TOKEN, Message, length_of
from turnwise.states.model_errors import INTERNAL, NOTHING_FOLDED, REJECTED_REPLY, ModelError
from turnwise.states.names import Audience, Executor, Need, Stage
from turnwise.states.triggers import Compacted, CompactionFailed
from turnwise.states.values.plain import type_name
from turnwise.states.values.values import unshared


class CompactionJob:
    """The job of `compacting`."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased
        self._attempts = Attempts(leased)
        self._spending = Spending()
        self._summariser = Summariser(leased, self._spending)

    async def run(self) -> None:
        """Fold the model's view and commit it; a failure is reported and leaves the history unchanged.

        Nothing is stored until everything is folded, so a worker that takes over starts from the beginning. A summary
        of messages that were erased meanwhile is discarded. If the step needs the room, the job runs again after a
        retryable failure, unless it may be what ends its workers.
        """
        attempt = await self._attempts.begin()
        attempt.spending = self._spending
        try:
            refuse_endless_attempts(self._leased.facts.step)
            while not await self._fold_and_commit():
                logger.debug("summary_outdated")
        except ModelError as failure:
            await self._fail(failure)
        except InvalidContent as error:
            unfit = ModelError("bad_request", message=f"the summary cannot be stored: {error.problem}")
            await self._fail(unfit)

    async def _fold_and_commit(self) -> bool:
        """Fold the history and commit it; return false if a source of the summary was erased meanwhile."""
        version = (await self._leased.current_view()).history_version
        system = self._leased.facts.profile.system
        summary = await self._fold()
        try:
            await self._leased.fire(partial(self._conclude, version, system, summary))
        except ConcurrentTransition:
            if self._leased.lost or job_of(self._leased.facts) is not self._leased.job:
                raise
            return False
        return True

    def _conclude(self, version: int, system: str | None, summary: Summary, unit: UnitOfWork) -> None:
        if (unit.facts.history_version, unit.facts.profile.system) == (version, system):
            unit.fire(Compacted(token=self._leased.token, summary=summary, usage=self._spending.usage))

    async def _fold(self) -> Summary:
        view, observers = await self._leased.current_view(), self._leased.runtime.observers
        by_strategy = self._leased.configuration.settings.compaction.strategy is not None
        with observers.compaction(self._leased.facts, by_strategy=by_strategy, messages=len(view.messages)) as run:
            summary = await self._summary(view)
            if run is not None:
                run.messages_after = len(summary.messages)
            return summary

    async def _summary(self, view: View) -> Summary:
        history, retained = tuple(view.messages), self._positions_to_keep(view.messages)
        strategy = self._leased.configuration.settings.compaction.strategy
        try:
            if strategy is not None:
                messages = await self._run_strategy(strategy, history)
            else:
                sendable = view.to_send(self._summariser.model.provider)
                text = await self._summariser.summarise(self._to_summarise(history, sendable, retained))
                messages = [transient("user", SUMMARY_PREFIX + text, history[-1])]
            summary = summary_of(history, messages, retained)
            return replace(summary, tokens=self._tokens_after(view, summary))
        except (ModelError, InvalidContent):
            raise
        except Exception as error:  # noqa: BLE001 - user code
            logger.exception("summary_failed", error=error)
            raise ModelError(INTERNAL, retryable=False, message=described(error)) from UserCodeError(error)

    def _tokens_after(self, view: View, summary: Summary) -> int:
        """Estimate the tokens of the new prompt, with the present tokens per character."""
        stays = set(summary.carried)
        messages = [one for one in summary.messages if isinstance(one, Message)]
        messages += [message for message in view.messages if message.position in stays]
        characters = sum(length_of(part) for message in messages for part in message.parts)
        tokens = self._leased.facts.compaction.context_tokens
        if tokens is None or not view.characters:
            return characters // CHARACTERS_PER_TOKEN
        return characters * tokens // view.characters

    async def _run_strategy(self, strategy: CompactionStrategy, history: Sequence[Message]) -> Sequence[Message]:
        compaction, request = self._leased.facts.compaction, await Requests(self._leased).build("summary", [], {})
        figures = CompactionInput(
            context_tokens=compaction.context_tokens,
            context_limit=compaction.context_limit,
            compactions=compaction.count,
            system=request.system,
            tools=unshared(request.tools),
            model=self._leased.configuration.model,
        )
        folded = await self._summariser.in_time(partial(_call_strategy, strategy, unshared([*history]), figures))
        if folded is None:
            raise ModelError(NOTHING_FOLDED, message="nothing was folded")
        if not isinstance(folded, CompactionResult):
            problem = f"the strategy returned {type_name(folded)!r}; it has to return a CompactionResult, or None"
            raise ModelError("bad_request", message=problem)
        if folded.usage is not None:
            self._spending.add(validate_usage(folded.usage))
        return folded.messages

    async def _fail(self, failure: ModelError) -> None:
        step, settings = self._leased.facts.step, self._leased.configuration.settings
        # A request for a summary is not streamed: one that took too long has been answered for most of that time.
        paid = (
            failure.timed_out
            or failure.kind == REJECTED_REPLY
            or (self._spending.usage is not None and self._spending.usage.known)
        )
        by_own = settings.compaction.model is None and settings.compaction.strategy is None
        before = self._attempts.failed_before(failure.kind) if by_own else ()
        now = self._leased.runtime.clock.now()
        retry = decide_retry(settings.retry, step, failure, paid=paid, now=now, failed_before=before)
        was_asked = by_own and self._spending.usage is not None
        falls_back = was_asked and self._attempts.may_fall_back(failure)
        # Only a step whose prompt was refused needs the summary. Any other turn goes on without it.
        is_needed = step.stage is Stage.refused
        raised = failure.__cause__
        final = retry.error if is_needed and not falls_back else failure
        error = error_info(raised if isinstance(raised, UserCodeError) else final, step, settings)
        if refused := await self._attempts.refused_in(
            failure, settings.compaction.model or self._leased.configuration.model
        ):
            await self._attempts.leave_out(error, refused, usage=self._spending.usage)
        elif falls_back:
            await self._attempts.fall_back(failure, error, usage=self._spending.usage, paid=paid)
        elif is_needed and retry.delay is not None:
            await self._attempts.try_again(retry, error, usage=self._spending.usage, paid=paid)
        else:
            # A prompt that was refused as too long needs room: there a strategy that folds nothing leaves the step
            # failed.
            declined = failure.kind == NOTHING_FOLDED and step.stage is not Stage.refused
            await self._leased.fire(
                CompactionFailed(token=self._leased.token, error=error, usage=self._spending.usage, declined=declined)
            )

    async def can_fold(self) -> bool:
        """Whether the model sees anything that may be folded."""
        history = (await self._leased.current_view()).messages
        return len(self._positions_to_keep(history)) < len(history)

    def _positions_to_keep(self, history: Sequence[Message]) -> set[int]:
        """Return the positions that must not be folded: user messages without an answer, and a step with open calls."""
        facts = self._leased.facts
        going_on = facts.turn.number if facts.history.unfinished else None
        waiting = unanswered(history, ending=self._ending(history), going_on=going_on)
        return {*waiting, *self._open_step(history)}

    def _ending(self, history: Sequence[Message]) -> set[str]:
        """Return the ids of the local calls that end their turn if they succeed, such as those of the answer tool."""
        agents, now = self._leased.runtime.agents, self._leased.facts.profile.agent
        return {
            call.call_id
            for message in history
            for call in message.calls
            if call.executor is Executor.local and agents.ends_turns(message.agent or now, call.name)
        }

    def _open_step(self, history: Sequence[Message]) -> set[int]:
        step = self._leased.facts.step.number if self._leased.facts.open_calls else None
        return {message.position for message in history if message.step == step and message.role != "user"}

    def _to_summarise(
        self, history: Sequence[Message], sendable: Sequence[Message], retained: set[int]
    ) -> Sequence[Message]:
        """Return the messages to summarise: the prompt up to the last message that is folded.

        Retained messages before that are included: the summary is about them. Calls without a result are left out; if
        nothing else follows the user's message, that alone is summarised. A requested compaction does not summarise
        only a summary.
        """
        still_open = self._open_step(history)
        folded = [place for place, message in enumerate(sendable) if message.position not in retained]
        is_requested = self._leased.facts.compaction.need is Need.requested
        if folded and is_requested and all(_is_summary(sendable[place]) for place in folded):
            return ()  # only a prompt that was refused as too long needs a shorter summary of one
        if not folded and still_open:
            folded = [place for place, message in enumerate(sendable) if message.position not in still_open]
        last = max(folded, default=-1)
        return [message for message in sendable[: last + 1] if message.position not in still_open]


async def _call_strategy(strategy: CompactionStrategy, messages: list[Message], figures: CompactionInput) -> Folding:
    folded = strategy(messages, figures)
    return await folded if inspect.isawaitable(folded) else folded


def _is_summary(message: Message) -> bool:
    return message.role == "user" and message.audience is Audience.model and is_made(message)
