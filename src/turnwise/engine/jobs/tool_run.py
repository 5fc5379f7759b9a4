"""One run of a local call: in a task of its own, within its time limit, with the context of its tool."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from functools import partial
from typing import Any

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.blobs.streams import FileContent
from turnwise.engine.isolation.clock import calling_after
from turnwise.engine.isolation.error_texts import OUTCOME_UNKNOWN
from turnwise.engine.isolation.user_code import UserCall
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.jobs.running_calls import RunningCall, RunningCalls
from turnwise.engine.tools.context import ToolContext
from turnwise.engine.tools.declare import Reconciled
from turnwise.engine.tools.toolbox import failed, idempotency_key
from turnwise.engine.transactions.schedules import Scheduler
from turnwise.logger import logger
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import FatalToolError, TurnwiseError
from turnwise.states.events import ToolProgressEvent
from turnwise.states.messages import FilePart
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.values.digests import as_json
from turnwise.states.values.limits import within
from turnwise.states.values.plain import copied, type_name
from turnwise.states.values.values import Json


class ToolTask:
    """Runs one call. `began` tells whether the tool may have started before, on a worker that is gone."""

    def __init__(self, leased: LeasedChat, running: RunningCalls, call: ToolCall, *, began: bool = False) -> None:
        self._leased = leased
        self._toolbox = leased.configuration.toolbox
        self._running = running
        self._call = call
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._context: ToolContext[Any] = ToolContext(
            chat_id=leased.chat_id,
            call_id=call.call_id,
            step=call.step,
            attempt=leased.facts.step.attempt,
            idempotency_key=idempotency_key(leased.chat_id, call),
            report=self._report,
            chat=running.environment.chat,
            deps=running.environment.deps,
            put_file=self._put_file,
            schedule=Scheduler(leased.runtime, leased.chat_id, f"agent:{leased.facts.agent_needed}"),
        )
        self._run = RunningCall(self._context, began=began)

    def start(self) -> None:
        call = self._call
        self._running.calls[call.call_id] = self._run
        self._run.call = self._leased.runtime.tasks.user_calls.start(
            self._run_watched, f"tool {call.name}", chat_id=self._leased.chat_id, call_id=call.call_id
        )

    # After a crash

    async def reconcile(self) -> CallOutcome | Reconciled:
        """Ask the tool about the call that a crash cut off, within the call's own time limit."""
        call = self._call
        question = self._leased.runtime.tasks.user_calls.start(
            self._reconcile, f"reconcile of {call.name}", chat_id=self._leased.chat_id, call_id=call.call_id
        )
        expire = partial(self._expire_question, question)
        try:
            with calling_after(self._leased.runtime.clock, self._toolbox.timeout(call), expire):
                return await question.outcome()
        finally:
            question.abandon()

    async def _reconcile(self) -> CallOutcome | Reconciled:
        found = await self._toolbox.after_crash(self._call, self._context)
        return found if isinstance(found, Reconciled) else await self._sending.store_attachments(found)

    def _expire_question(self, question: UserCall[CallOutcome | Reconciled]) -> None:
        self._context.cancelled = True
        question.log("reconcile_timed_out")
        question.give(self._toolbox.apply_crash_policy(self._call))

    def finish(self, outcome: CallOutcome) -> None:
        """Record an outcome without running the tool."""
        self._running.calls[self._call.call_id] = self._run
        self._running.finish(self._call, outcome)

    # The tool

    async def _run_watched(self) -> None:
        leased = self._leased
        try:
            await leased.assert_tools_may_start()
        except Exception as reason:  # noqa: BLE001 - the job must not wait for this call for ever
            self._running.fail(reason)
            return
        self._call = call = leased.as_it_stands(self._call)
        is_known = call.name in self._toolbox.tools
        with leased.runtime.observers.tool_run(
            leased.chat_id, call, known=is_known, trace=leased.facts.turn.trace
        ) as watched:
            await self._run_tool()
            if watched is not None:
                result = self._run.result
                watched.error = result.error if isinstance(result, CallOutcome) else result
                if isinstance(result, CallOutcome):  # a copy, so that no change of an observer is stored
                    result = dataclasses.replace(result, output=copied(result.output))
                watched.result = result

    async def _run_tool(self) -> None:
        call, run, timeout = self._call, self._run, self._toolbox.timeout(self._call)
        try:
            with calling_after(self._leased.runtime.clock, timeout, partial(self._expire, timeout)):
                outcome = await self._toolbox.run(call, self._context, self._begin)
                self._running.finish(call, await self._sending.store_attachments(outcome))
        except FatalToolError as fatal:
            self._running.finish(call, fatal)
        except Exception as error:  # noqa: BLE001 - a defect of turnwise: the job must not wait for this call for ever
            logger.exception("tool_failed", error=error, tool=call.name, call_id=call.call_id)
            text = f"{type_name(error)}. {OUTCOME_UNKNOWN}" if run.began else type_name(error)
            self._running.finish(call, failed(call, text, CallStatus.unknown if run.began else CallStatus.failed))
        timed_out = isinstance(run.result, CallOutcome) and run.result.status is CallStatus.timed_out
        logger.debug("tool_run", tool=call.name, timed_out=timed_out)

    def _begin(self) -> None:
        """Note that the tool begins; perhaps in a thread."""
        self._leased.runtime.started_calls.note(self._leased.chat_id, self._call.call_id)
        self._run.begin()

    def _expire(self, timeout: float | None) -> None:
        self._run.cancel()
        call, unknown = self._call, "Its outcome is unknown: it may or may not have taken effect."
        rest = unknown if self._run.began else "It had not begun, and did not run."
        text = f"{call.name} timed out after {timeout:g} s. {rest}"
        self._running.finish(call, failed(call, text, CallStatus.timed_out))

    # What the tool may ask for

    def _report(self, progress: Json) -> None:
        limited = within(as_json(progress), self._leased.configuration.settings.output_limit_bytes)
        event = ToolProgressEvent(step=self._call.step, call_id=self._call.call_id, progress=limited)
        start = partial(self._leased.runtime.tasks.start_soon, self._show_progress, event)
        if threading.get_ident() == self._thread:
            start()
        else:
            self._loop.call_soon_threadsafe(start)

    async def _show_progress(self, event: ToolProgressEvent) -> None:
        """Show the progress of a call, unless it is over."""
        call = self._leased.facts.calls.get(event.call_id)
        if self._context.cancelled or call is None or not call.open:
            logger.debug("progress_dropped", call_id=event.call_id, problem="the call is over")
            return
        try:
            await self._leased.show(ChatState.executing_tools, [event])
        except (ConcurrentTransition, TurnwiseError) as error:
            logger.debug("progress_dropped", call_id=event.call_id, problem=str(error))

    async def _put_file(
        self, content: FileContent, *, media_type: str | None = None, name: str | None = None
    ) -> FilePart:
        return await self._leased.runtime.files.put(self._leased.chat_id, content, media_type, name)

    @property
    def _sending(self) -> Sending:
        """The holder of the files of the call's result, from its end to its commit."""
        return Sending(self._leased.runtime.files, self._leased.chat_id, self._call.call_id)
