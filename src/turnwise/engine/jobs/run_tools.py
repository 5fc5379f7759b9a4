"""The job of `executing_tools`: run the step's local calls, and record each before it starts and when it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from turnwise.engine.agents.deps import DepsFailed
from turnwise.engine.blobs.sending import Sending
from turnwise.engine.blobs.streams import FileContent
from turnwise.engine.config.results import chat_of
from turnwise.engine.isolation.clock import calling_after
from turnwise.engine.isolation.error_texts import OUTCOME_UNKNOWN, private_text, public_text
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.jobs.reply import never_answered
from turnwise.engine.jobs.running_calls import Run, Running, ToolEnvironment
from turnwise.engine.tools.declare import Reconciled, ToolContext
from turnwise.engine.tools.toolbox import failed, idempotency_key
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.foreign import text_of
from turnwise.logger import logger
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import INVALID_ANSWER, FatalToolError, TurnwiseError
from turnwise.states.events import ErrorInfo, ToolProgressEvent
from turnwise.states.messages import FilePart
from turnwise.states.names import CallStatus, ChatState
from turnwise.states.triggers import CallFinished, CallStarted, Failed, ToolsFinished
from turnwise.states.values.digests import as_json
from turnwise.states.values.output_limit import text_within, within
from turnwise.states.values.plain import copied, type_name
from turnwise.states.values.values import Json


async def run_tools(leased: LeasedChat) -> None:
    """Run every open local call, then fire `tools_finished`; a fatal tool fires `failed` instead.

    Whether the turn is over with them is judged by a worker that has the chat's agent: it knows its budgets.
    """
    # Another agent may have become the chat's since: its calls are run by the one that asked for them.
    if leased.configuration.agent != leased.facts.agent_needed:
        leased.configure()
    batch = [call for call in leased.facts.calls if call.is_local]
    waiting = deque(call for call in batch if call.open)
    if not waiting:
        await leased.fire(lambda unit: leased.go_on(unit, ToolsFinished(token=leased.token)))
        return
    chat, limit = chat_of(leased.facts), leased.configuration.settings.tool_timeout
    try:
        deps = await leased.deps.value(replace(chat, agent=leased.configuration.agent), limit)
        environment = ToolEnvironment(chat, deps)
    except DepsFailed as error:
        await _fail_for_lack_of_deps(leased, error)
        return
    running = Running(environment)
    leased.stop_calls = running.abandon
    width = leased.configuration.toolbox.width(batch)
    try:
        while waiting or running.has_more:
            # A result that has come is committed first: the next call is begun by the same commit.
            while waiting and not running.has_results and len(running.calls) < width:
                await _start(leased, waiting.popleft(), running)
            call, outcome = await running.next_finished()
            if isinstance(outcome, FatalToolError):
                await _fail(leased, call, outcome, others=running.stop(partial(_fatal, leased)))
                return
            if _is_refused_for_good(leased, call, outcome):
                others = running.stop(partial(_fatal, leased))
                await _fail_for_lack_of_an_answer(leased, [*others, outcome])
                return
            # One that a crash cut off is not begun so: its tool is asked first what became of it.
            new = waiting and waiting[0].status is CallStatus.planned and not _began_here(leased, waiting[0])
            following = waiting.popleft() if new else None  # in the place of the one that ended
            await _finish(leased, outcome, following)
            await _let_go(leased, outcome)
            if following is not None:
                _run(leased, following, running)
    finally:
        leased.stop_calls = None
        running.abandon()


async def _start(leased: LeasedChat, call: ToolCall, running: Running) -> None:
    """Start one of the job's first calls; record it first, unless the transition into the state did so."""
    call, may_be_done, began_here = _as_it_stands(leased, call), False, _began_here(leased, call)
    if began_here or call.call_id not in leased.begun_calls:
        not_done = False
        if began_here or call.status is CallStatus.started:
            context = _context(leased, call, running.environment)
            found = await _asked_after_crash(leased, call, context)
            if isinstance(found, CallOutcome):
                running.calls[call.call_id] = Run(context)
                running.finish(call, found)
                return
            not_done = found.verdict == "not_done"
            may_be_done = not not_done
        started = CallStarted(token=leased.token, call_id=call.call_id, not_done=not_done)
        reason = "its tool says that it was not done" if not_done else None
        await leased.fire(lambda unit: unit.fire(started, reason=reason))
    _run(leased, call, running, began=may_be_done)


def _began_here(leased: LeasedChat, call: ToolCall) -> bool:
    """Return whether the tool of a call has begun in this process, whatever the store knows of that."""
    return (leased.chat_id, call.call_id) in leased.runtime.begun_calls


async def _asked_after_crash(leased: LeasedChat, call: ToolCall, context: ToolContext[Any]) -> CallOutcome | Reconciled:
    """Ask the tool what became of a call that a crash cut off, within the call's own time limit."""
    toolbox = leased.configuration.toolbox
    question = leased.runtime.tasks.user_calls.start(
        lambda: _found_after_crash(leased, call, context), f"reconcile of {call.name}", **_where(leased, call)
    )

    def expire() -> None:
        context.cancelled = True
        question.tell("reconcile_timed_out")
        question.give(toolbox.undecided(call))

    try:
        with calling_after(leased.runtime.clock, toolbox.timeout(call), expire):
            return await question.outcome()
    finally:
        question.abandon()


async def _found_after_crash(leased: LeasedChat, call: ToolCall, context: ToolContext[Any]) -> CallOutcome | Reconciled:
    found = await leased.configuration.toolbox.after_crash(call, context)
    return found if isinstance(found, Reconciled) else await _sending(leased, call.call_id).attached(found)


def _run(leased: LeasedChat, call: ToolCall, running: Running, *, began: bool = False) -> None:
    run = Run(_context(leased, call, running.environment), began=began)
    running.calls[call.call_id] = run
    run.call = leased.runtime.tasks.user_calls.start(
        lambda: _run_watched(leased, call, run, running), f"tool {call.name}", **_where(leased, call)
    )


async def _run_watched(leased: LeasedChat, call: ToolCall, run: Run, running: Running) -> None:
    try:
        await leased.assert_tools_may_start()
    except Exception as reason:  # noqa: BLE001 - or the job would wait for a call that never begins
        running.break_off(reason)
        return
    call = _as_it_stands(leased, call)
    is_known = call.name in leased.configuration.toolbox.tools
    with leased.runtime.observers.tool_run(
        leased.chat_id, call, known=is_known, trace=leased.facts.turn.trace
    ) as watched:
        await _run_one(leased, call, run, running)
        if watched is not None:
            watched.result = _as_told(run.result)
            watched.error = run.result.error if isinstance(run.result, CallOutcome) else run.result


def _as_told(result: CallOutcome | FatalToolError | None) -> CallOutcome | FatalToolError | None:
    """Return what observers are told of a result: a copy, so that no change of theirs is stored."""
    return dataclasses.replace(result, output=copied(result.output)) if isinstance(result, CallOutcome) else result


async def _run_one(leased: LeasedChat, call: ToolCall, run: Run, running: Running) -> None:
    timeout = leased.configuration.toolbox.timeout(call)

    def begin() -> None:
        leased.runtime.begun_calls.note(leased.chat_id, call.call_id)
        run.begin()

    def expire() -> None:
        run.stop()
        running.finish(call, _timed_out(call, timeout, began=run.began))

    try:
        with calling_after(leased.runtime.clock, timeout, expire):
            outcome = await leased.configuration.toolbox.run(call, run.context, begin)
            running.finish(call, await _sending(leased, call.call_id).attached(outcome))
    except FatalToolError as fatal:
        running.finish(call, fatal)
    except Exception as error:  # noqa: BLE001 - a defect of turnwise: the job must not wait for this call for ever
        logger.exception("tool_failed", error=error, tool=call.name, call_id=call.call_id)
        text = f"{type_name(error)}. {OUTCOME_UNKNOWN}" if run.began else type_name(error)
        running.finish(call, failed(call, text, CallStatus.unknown if run.began else CallStatus.failed))
    timed_out = isinstance(run.result, CallOutcome) and run.result.status is CallStatus.timed_out
    logger.debug("tool_run", tool=call.name, timed_out=timed_out)


def _as_it_stands(leased: LeasedChat, call: ToolCall) -> ToolCall:
    """Return the call as it is stored now: if its arguments were erased as it waited, it is answered instead of run."""
    return leased.facts.calls.get(call.call_id) or call


async def _finish(leased: LeasedChat, outcome: CallOutcome, following: ToolCall | None) -> None:
    def plan(unit: UnitOfWork) -> None:
        facts = unit.fire(CallFinished(token=leased.token, outcome=outcome))
        if following is not None:
            unit.fire(CallStarted(token=leased.token, call_id=following.call_id))
        elif not facts.calls.open_local:
            leased.go_on(unit, ToolsFinished(token=leased.token))

    await leased.fire(plan)


async def _end(leased: LeasedChat, outcomes: Sequence[CallOutcome], error: ErrorInfo) -> None:
    """End the chat in `error`; calls that have ended, or had not begun, have results already.

    In one commit: were the chat to end later, a crash in between would have the model go on from these results.
    """

    def plan(unit: UnitOfWork) -> None:
        for outcome in outcomes:
            unit.fire(CallFinished(token=leased.token, outcome=outcome))
        unit.fire(Failed(token=leased.token, error=error))

    await leased.fire(plan)
    for outcome in outcomes:
        await _let_go(leased, outcome)


async def _fail(leased: LeasedChat, call: ToolCall, fatal: FatalToolError, *, others: Sequence[CallOutcome]) -> None:
    outcome = _fatal(leased, call, fatal)
    told = f"{call.name}: {outcome.output}"
    error = ErrorInfo(kind="tool", message=told, step=call.step, attempt=leased.facts.step.attempt)
    await _end(leased, [*others, outcome], error)


def _fatal(leased: LeasedChat, call: ToolCall, fatal: FatalToolError) -> CallOutcome:
    logger.exception("tool_failed", error=fatal, tool=call.name, call_id=call.call_id)
    limit = leased.configuration.settings.output_limit_bytes
    return failed(call, text_within(text_of(fatal, otherwise=""), limit) or "the tool ended the chat")


def _is_refused_for_good(leased: LeasedChat, call: ToolCall, outcome: CallOutcome) -> bool:
    """Whether the outcome is that of an answer without the form that the agent wants, after which none is asked for."""
    refused = leased.facts.turn.refused + 1
    return call.answers and outcome.is_error and refused > leased.configuration.settings.answer_retries


async def _fail_for_lack_of_an_answer(leased: LeasedChat, outcomes: Sequence[CallOutcome]) -> None:
    step, message = leased.facts.step, never_answered(leased.facts.turn.refused + 1)
    error = ErrorInfo(kind=INVALID_ANSWER, message=message, step=step.number, attempt=step.attempt)
    await _end(leased, outcomes, error)


async def _fail_for_lack_of_deps(leased: LeasedChat, unopened: DepsFailed) -> None:
    cause = unopened if unopened.__cause__ is None else unopened.__cause__
    logger.exception("deps_failed", error=cause)
    step, settings = leased.facts.step, leased.configuration.settings
    problem = "the deps of the chat could not be opened: "
    text, detail = public_text("deps", cause, settings.describe_error), None
    if settings.describe_error is None:
        detail = text_within(problem + private_text(cause), settings.output_limit_bytes)
    else:
        text = text_within(problem + text, settings.output_limit_bytes)
    error = ErrorInfo(kind="deps", message=text, step=step.number, attempt=step.attempt, detail=detail)
    await leased.fire(Failed(token=leased.token, error=error))


def _timed_out(call: ToolCall, timeout: float | None, *, began: bool) -> CallOutcome:
    unknown = "Its outcome is unknown: it may or may not have taken effect."
    text = f"{call.name} timed out after {timeout:g} s. {unknown if began else 'It had not begun, and did not run.'}"
    return failed(call, text, CallStatus.timed_out)


def _where(leased: LeasedChat, call: ToolCall) -> dict[str, str]:
    return {"chat_id": leased.chat_id, "call_id": call.call_id}


def _context(leased: LeasedChat, call: ToolCall, environment: ToolEnvironment) -> ToolContext[Any]:
    loop, thread = asyncio.get_running_loop(), threading.get_ident()

    def report(progress: Json) -> None:
        limited = within(as_json(progress), leased.configuration.settings.output_limit_bytes)
        event = ToolProgressEvent(step=call.step, call_id=call.call_id, progress=limited)
        start = partial(leased.runtime.tasks.start_soon, _show_progress, leased, context, event)
        if threading.get_ident() == thread:
            start()
        else:
            loop.call_soon_threadsafe(start)

    context: ToolContext[Any] = ToolContext(
        chat_id=leased.chat_id,
        call_id=call.call_id,
        step=call.step,
        attempt=leased.facts.step.attempt,
        idempotency_key=idempotency_key(leased.chat_id, call),
        report=report,
        chat=environment.chat,
        deps=environment.deps,
        put_file=partial(_put_file, leased),
    )
    return context


def _sending(leased: LeasedChat, call_id: str) -> Sending:
    """Return what sees to the files of a call's result, from its end to its commit."""
    return Sending(leased.runtime.files, leased.chat_id, call_id)


async def _let_go(leased: LeasedChat, outcome: CallOutcome) -> None:
    """Let go of the files of a result that is committed."""
    if any(file.blob is not None for file in outcome.attachments):
        await _sending(leased, outcome.call_id).end()


async def _put_file(
    leased: LeasedChat, content: FileContent, *, media_type: str | None = None, name: str | None = None
) -> FilePart:
    return await leased.runtime.files.put(leased.chat_id, content, media_type, name)


async def _show_progress(leased: LeasedChat, context: ToolContext[Any], event: ToolProgressEvent) -> None:
    """Show the progress of a call, unless it is over: what it left running, or does not end, reports to nobody."""
    call = leased.facts.calls.get(event.call_id)
    if context.cancelled or call is None or not call.open:
        logger.debug("progress_dropped", call_id=event.call_id, problem="the call is over")
        return
    try:
        await leased.show(ChatState.executing_tools, [event])
    except (ConcurrentTransition, TurnwiseError) as error:
        logger.debug("progress_dropped", call_id=event.call_id, problem=str(error))
