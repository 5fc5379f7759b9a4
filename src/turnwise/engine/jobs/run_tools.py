"""The job of `executing_tools`: run the step's local calls, and record the start and the end of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from turnwise.engine.agents.answer_format import answer_retries_exhausted
from turnwise.engine.agents.deps import DepsFailed
from turnwise.engine.blobs.sending import Sending
from turnwise.engine.config.results import chat_of
from turnwise.engine.isolation.error_texts import private_text, public_text
from turnwise.engine.jobs.endings import error_info
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.jobs.running_calls import RunningCalls, ToolEnvironment
from turnwise.engine.jobs.tool_run import ToolTask
from turnwise.engine.tools.toolbox import failed
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.foreign import text_of
from turnwise.logger import logger
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import FatalToolError
from turnwise.states.events import ErrorInfo
from turnwise.states.names import CallStatus
from turnwise.states.triggers import NOT_DONE, CallFinished, CallStarted, Failed, ToolsFinished
from turnwise.states.values.limits import text_within


class ToolJob:
    """Runs the local calls of a step, as many at a time as their tools allow."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def run(self) -> None:
        """Run every open local call, then fire `tools_finished`; a fatal tool fires `failed` instead.

        Only a worker with the chat's agent, which has the budgets, decides whether the turn is over.
        """
        leased = self._leased
        # Another agent may have become the chat's since: its calls are run by the one that asked for them.
        if leased.configuration.agent != leased.facts.agent_needed:
            leased.configure()
        batch = [call for call in leased.facts.calls if call.is_local]
        waiting = deque(call for call in batch if call.open)
        if not waiting:
            await leased.fire(partial(leased.go_on, ToolsFinished(token=leased.token)))
            return
        chat, limit = chat_of(leased.facts), leased.configuration.settings.tool_timeout
        try:
            deps = await leased.deps.value(replace(chat, agent=leased.configuration.agent), limit)
        except DepsFailed as error:
            await self._fail_for_lack_of_deps(error)
            return
        running = RunningCalls(ToolEnvironment(chat, deps))
        leased.stop_calls = running.cancel_all
        try:
            await self._run_all(waiting, running, leased.configuration.toolbox.width(batch))
        finally:
            leased.stop_calls = None
            running.cancel_all()

    async def _run_all(self, waiting: deque[ToolCall], running: RunningCalls, width: int) -> None:
        while waiting or running.has_more:
            # A result that has come is committed first: the same commit starts the next call.
            while waiting and not running.has_results and len(running.calls) < width:
                await self._start(waiting.popleft(), running)
            call, outcome = await running.next_finished()
            if isinstance(outcome, FatalToolError):
                await self._fail(call, outcome, others=running.cancel_and_collect(self._fatal))
                return
            if self._is_refused_for_good(call, outcome):
                await self._fail_for_lack_of_an_answer(outcome, others=running.cancel_and_collect(self._fatal))
                return
            # A call that a crash cut off is not started so: its tool is asked first what became of it.
            new = waiting and waiting[0].status is CallStatus.planned and not self._began_here(waiting[0])
            following = waiting.popleft() if new else None  # in the place of the one that ended
            await self._leased.fire(Finish(self._leased, outcome, following))
            await self._release_files(outcome)
            if following is not None:
                ToolTask(self._leased, running, following).start()

    async def _start(self, call: ToolCall, running: RunningCalls) -> None:
        """Start one of the job's first calls; record it first, unless the transition into the state did so."""
        leased = self._leased
        call, may_be_done, began_here = leased.as_it_stands(call), False, self._began_here(call)
        if began_here or call.call_id not in leased.started_calls:
            not_done = False
            if began_here or call.status is CallStatus.started:
                cut_off = ToolTask(leased, running, call)
                found = await cut_off.reconcile()
                if isinstance(found, CallOutcome):
                    cut_off.finish(found)
                    return
                not_done = found.verdict == "not_done"
                may_be_done = not not_done
            started = CallStarted(token=leased.token, call_id=call.call_id, not_done=not_done)
            await leased.fire(partial(_start_again, started))
        ToolTask(leased, running, call, began=may_be_done).start()

    def _began_here(self, call: ToolCall) -> bool:
        """Whether the tool of a call has started in this process, even if the store has lost its start."""
        return (self._leased.chat_id, call.call_id) in self._leased.runtime.started_calls

    async def _release_files(self, outcome: CallOutcome) -> None:
        """Release the files of a committed result: the message holds them now."""
        if any(file.blob is not None for file in outcome.attachments):
            await Sending(self._leased.runtime.files, self._leased.chat_id, outcome.call_id).end()

    # Calls that end the chat

    async def _end(self, outcomes: Sequence[CallOutcome], error: ErrorInfo) -> None:
        """End the chat in `error`, in one commit with the outcomes: after a crash in between the turn would go on."""
        await self._leased.fire(End(self._leased.token, outcomes, error))
        for outcome in outcomes:
            await self._release_files(outcome)

    async def _fail(self, call: ToolCall, fatal: FatalToolError, *, others: Sequence[CallOutcome]) -> None:
        outcome = self._fatal(call, fatal)
        message, attempt = f"{call.name}: {outcome.output}", self._leased.facts.step.attempt
        error = ErrorInfo(kind="tool", message=message, step=call.step, attempt=attempt)
        await self._end([*others, outcome], error)

    def _fatal(self, call: ToolCall, fatal: FatalToolError) -> CallOutcome:
        logger.exception("tool_failed", error=fatal, tool=call.name, call_id=call.call_id)
        limit = self._leased.configuration.settings.output_limit_bytes
        return failed(call, text_within(text_of(fatal, otherwise=""), limit) or "the tool ended the chat")

    def _is_refused_for_good(self, call: ToolCall, outcome: CallOutcome) -> bool:
        """Whether the outcome refuses an answer, and no other answer is asked for."""
        refused = self._leased.facts.turn.refused + 1
        return call.answers and outcome.is_error and refused > self._leased.configuration.settings.answer_retries

    async def _fail_for_lack_of_an_answer(self, last: CallOutcome, *, others: Sequence[CallOutcome]) -> None:
        error = answer_retries_exhausted(self._leased.facts.turn.refused + 1, str(last.output))
        info = error_info(error, self._leased.facts.step, self._leased.configuration.settings)
        await self._end([*others, last], info)

    async def _fail_for_lack_of_deps(self, unopened: DepsFailed) -> None:
        cause = unopened if unopened.__cause__ is None else unopened.__cause__
        logger.exception("deps_failed", error=cause)
        step, settings = self._leased.facts.step, self._leased.configuration.settings
        problem = "the deps of the chat could not be opened: "
        text, detail = public_text("deps", cause, settings.describe_error), None
        if settings.describe_error is None:
            detail = text_within(problem + private_text(cause), settings.output_limit_bytes)
        else:
            text = text_within(problem + text, settings.output_limit_bytes)
        error = ErrorInfo(kind="deps", message=text, step=step.number, attempt=step.attempt, detail=detail)
        await self._leased.fire(Failed(token=self._leased.token, error=error))


class Finish(msgspec.Struct, frozen=True):
    """Records the outcome of a call, with the start of the call in its place, or the end of the batch."""

    leased: LeasedChat
    outcome: CallOutcome
    following: ToolCall | None

    def __call__(self, unit: UnitOfWork) -> None:
        token = self.leased.token
        facts = unit.fire(CallFinished(token=token, outcome=self.outcome))
        if self.following is not None:
            unit.fire(CallStarted(token=token, call_id=self.following.call_id))
        elif not facts.calls.open_local:
            self.leased.go_on(ToolsFinished(token=token), unit)


class End(msgspec.Struct, frozen=True):
    """Records outcomes, and ends the chat in `error`."""

    token: int
    outcomes: Sequence[CallOutcome]
    error: ErrorInfo

    def __call__(self, unit: UnitOfWork) -> None:
        for outcome in self.outcomes:
            unit.fire(CallFinished(token=self.token, outcome=outcome))
        unit.fire(Failed(token=self.token, error=self.error))


def _start_again(started: CallStarted, unit: UnitOfWork) -> None:
    unit.fire(started, reason=NOT_DONE if started.not_done else None)
