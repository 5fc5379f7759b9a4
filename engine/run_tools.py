"""The job of `executing_tools`: run the step's local calls, each recorded before it starts and as it ends."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import anyio
import anyio.from_thread
from pydantic import JsonValue

from turnwise.engine.apply import Chain
from turnwise.engine.clock import Timer
from turnwise.engine.hold import Hold, Moved
from turnwise.engine.log import Log
from turnwise.engine.toolbox import failed, idempotency_key
from turnwise.engine.tools import ToolContext
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.digests import as_json
from turnwise.states.errors import FatalToolError, TurnwiseError
from turnwise.states.events import ErrorInfo, ToolProgressEvent
from turnwise.states.names import CallStatus, ChatState, Trigger
from turnwise.states.unicode import well_formed

_log = Log("turnwise.jobs")


async def run_tools(hold: Hold) -> None:
    """Run every open local call, then fire `tools_finished`; a fatal tool fires `failed` instead."""
    batch = [call for call in hold.facts.calls if call.is_local]
    waiting = deque(call for call in batch if call.open)
    if not waiting:
        await hold.fire(lambda chain: chain.fire(Trigger.tools_finished, token=hold.token))
        return
    running = Running()
    width = hold.desk.toolbox.width(batch)
    try:
        while waiting or running.has_more:
            while waiting and len(running.calls) < width:
                await _start(hold, waiting.popleft(), running)
            call, outcome = await running.next_finished()
            if isinstance(outcome, FatalToolError):
                await _fail(hold, call, outcome)
                return
            following = waiting.popleft() if waiting else None
            await _finish(hold, outcome, following)
            if following is not None:
                _run(hold, following, running)
    finally:
        running.abandon()


@dataclass(slots=True)
class Running:
    """The calls that run now, each in a task of its own: one that ignores its cancellation holds nobody up."""

    calls: dict[str, Run] = field(default_factory=dict)
    _finished: deque[tuple[ToolCall, CallOutcome | FatalToolError]] = field(default_factory=deque)
    _bell: anyio.Event = field(default_factory=anyio.Event)

    @property
    def has_more(self) -> bool:
        """Whether a call still runs, or has ended and was not asked for."""
        return bool(self.calls or self._finished)

    def finish(self, call: ToolCall, outcome: CallOutcome | FatalToolError) -> None:
        """Take the outcome of a call; that of an abandoned one is dropped."""
        run = self.calls.pop(call.call_id, None)
        if run is not None:
            run.result = outcome
            self._finished.append((call, outcome))
            self._bell.set()

    async def next_finished(self) -> tuple[ToolCall, CallOutcome | FatalToolError]:
        """Wait for the next call that ends."""
        while not self._finished:
            self._bell = anyio.Event()
            await self._bell.wait()
        return self._finished.popleft()

    def abandon(self) -> None:
        """Cancel what still runs; results that come late are dropped."""
        for run in self.calls.values():
            run.context.cancelled = True
            run.scope.cancel()
        self.calls.clear()


@dataclass(slots=True)
class Run:
    """One run of one call."""

    context: ToolContext
    scope: anyio.CancelScope
    result: CallOutcome | FatalToolError | None = None


async def _start(hold: Hold, call: ToolCall, running: Running) -> None:
    """Start a call that the job begins with, recording it first unless entering the state did."""
    if call.call_id not in hold.begun_calls:
        if call.status is CallStatus.started:
            found = await hold.desk.toolbox.reconcile(call, _context(hold, call))
            if found is not None:
                running.calls[call.call_id] = Run(_context(hold, call), anyio.CancelScope())
                running.finish(call, found)
                return
        await hold.fire(lambda chain: chain.fire(Trigger.call_started, token=hold.token, call_id=call.call_id))
    _run(hold, call, running)


def _run(hold: Hold, call: ToolCall, running: Running) -> None:
    run = Run(_context(hold, call), anyio.CancelScope())
    running.calls[call.call_id] = run
    hold.desk.tasks.start_soon(_run_watched, hold, call, run, running)


async def _run_watched(hold: Hold, call: ToolCall, run: Run, running: Running) -> None:
    known = call.name in hold.desk.toolbox.tools
    with hold.desk.observers.tool_run(hold.chat_id, call, known=known) as watched:
        await _run_one(hold, call, run, running)
        if watched is not None:
            watched.result = run.result


async def _run_one(hold: Hold, call: ToolCall, run: Run, running: Running) -> None:
    timeout = hold.desk.toolbox.timeout(call)
    timer: Timer | None = None
    timed_out = False

    def expire() -> None:
        nonlocal timed_out
        timed_out = True
        run.context.cancelled = True
        run.scope.cancel()
        running.finish(call, _timed_out(call, timeout))

    if timeout is not None:
        timer = hold.desk.clock.call_later(timeout, expire)
    try:
        with run.scope:
            running.finish(call, await hold.desk.toolbox.run(call, run.context))
    except FatalToolError as fatal:
        running.finish(call, fatal)
    except anyio.get_cancelled_exc_class():
        # Going on, it would end every chat of this engine: a library inside the tool cancelled, not the engine.
        running.finish(call, failed(call, "The tool was cancelled from within: its outcome is unknown."))
    finally:
        if timer is not None:
            timer.cancel()
    _log.debug("tool_run", chat_id=hold.chat_id, tool=call.name, timed_out=timed_out)


async def _finish(hold: Hold, outcome: CallOutcome, following: ToolCall | None) -> None:
    def script(chain: Chain) -> None:
        facts = chain.fire(Trigger.call_finished, token=hold.token, call_id=outcome.call_id, outcome=outcome)
        if following is not None:
            chain.fire(Trigger.call_started, token=hold.token, call_id=following.call_id)
        elif not any(call.is_local for call in facts.open_calls):
            chain.fire(Trigger.tools_finished, token=hold.token)

    await hold.fire(script)


async def _fail(hold: Hold, call: ToolCall, fatal: FatalToolError) -> None:
    message = well_formed(str(fatal)) or "the tool ended the chat"
    error = ErrorInfo(kind="tool", message=f"{call.name}: {message}", step=call.step, attempt=hold.facts.step.attempt)

    def script(chain: Chain) -> None:
        chain.fire(Trigger.call_finished, token=hold.token, call_id=call.call_id, outcome=failed(call, message))
        chain.fire(Trigger.failed, token=hold.token, error=error)

    await hold.fire(script)


def _timed_out(call: ToolCall, timeout: float | None) -> CallOutcome:
    text = f"{call.name} timed out after {timeout:g} s. Its outcome is unknown: it may or may not have taken effect."
    return failed(call, text, CallStatus.timed_out)


def _context(hold: Hold, call: ToolCall) -> ToolContext:
    def report(progress: JsonValue) -> None:
        event = ToolProgressEvent(
            chat_id=hold.chat_id, step=call.step, call_id=call.call_id, progress=as_json(progress)
        )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            anyio.from_thread.run_sync(hold.desk.tasks.start_soon, _show_progress, hold, event)
        else:
            hold.desk.tasks.start_soon(_show_progress, hold, event)

    return ToolContext(
        chat_id=hold.chat_id,
        call_id=call.call_id,
        step=call.step,
        attempt=hold.facts.step.attempt,
        idempotency_key=idempotency_key(hold.chat_id, call),
        report=report,
    )


async def _show_progress(hold: Hold, event: ToolProgressEvent) -> None:
    try:
        await hold.show(ChatState.executing_tools, [event])
    except (Moved, TurnwiseError) as error:
        _log.debug("progress_dropped", chat_id=hold.chat_id, call_id=event.call_id, problem=str(error))
