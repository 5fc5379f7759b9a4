"""The job that runs tools: records before a call runs, and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.engines import MakeModel, OpenChat, OpenEngine
from support.latches import Gate, Latch
from support.life import local
from turnwise import ClientTool, Engine, ModelError, Observer, RetryPolicy, Settings, ToolContext, ToolRun, tool
from turnwise.engine.jobs.running_calls import RunningCall, RunningCalls, ToolEnvironment
from turnwise.engine.tools.toolbox import failed
from turnwise.persistence.audit.record import AuditRecord
from turnwise.providers.scripted import Call, Reply
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import FatalToolError
from turnwise.states.names import CallStatus
from turnwise.testing import ManualClock

AT_ONCE = Settings(coalesce=0, shutdown_grace=0)


class Notes(Observer):
    """Records the runs of tools."""

    def __init__(self) -> None:
        self.runs: list[ToolRun] = []

    def tool_started(self, run: ToolRun) -> Callable[[], None]:
        return lambda: self.runs.append(run)


QUICK = Settings(coalesce=0, retry=RetryPolicy(first_delay=0.001))


async def test_observers_know_how_each_call_ended(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    error, fatal = OSError("no disk"), FatalToolError("")

    @tool
    async def fine() -> str:
        """Be fine."""
        return "fine"

    @tool
    async def fails() -> str:
        """Fail."""
        raise error

    @tool
    async def ends() -> str:
        """End it all."""
        raise fatal

    notes = Notes()
    names = ["fine", "fails", "invented", "ends", "fine"]
    model = strict_model([Reply(error=ModelError("overloaded")), Reply(calls=[Call(name, {}) for name in names])])
    async with open_engine(model, tools=[fine, fails, ends], settings=QUICK, observers=[notes]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
    assert [(run.call.name, run.known, run.outcome) for run in notes.runs] == [
        ("fine", True, "succeeded"),
        ("fails", True, "failed"),
        ("invented", False, "failed"),
        ("ends", True, "fatal"),
    ]
    assert [run.error for run in notes.runs] == [None, error, None, fatal]
    ended = result.chat.last_error
    assert (ended.kind, ended.step, ended.attempt) == ("tool", 1, 2)
    assert ended.message.startswith("ends: the tool ended")
    *_, last, never_ran = [message.result for message in result.messages if message.result is not None]
    assert "ended" in str(last.output)
    assert never_ran.outcome == "cancelled"


async def test_fatal_tool_leaves_running_calls_unknown(strict_model: MakeModel, open_chat: OpenChat) -> None:
    """It may have taken effect; a call that had not started is cancelled."""
    charging = Latch()

    @tool(parallel_safe=True)
    async def charge() -> str:
        """Charge."""
        await charging.pass_through()
        return "charged"

    @tool(parallel_safe=True)
    async def ends() -> str:
        """End it all."""
        await charging.entered.wait()
        raise FatalToolError("enough")

    model = strict_model([Reply(calls=[Call("charge", {}), Call("ends", {}), Call("ask", {})])])
    ask = ClientTool("ask", "Ask.", {"type": "object"})
    async with open_chat(model, tools=[charge, ends], settings=QUICK, client_tools=[ask]) as (engine, chat, _):
        result = await engine.ask(chat.id, "go")
        verdict = await engine.verify(chat.id)
    outcomes = {
        message.result.name: message.result.outcome for message in result.messages if message.result is not None
    }
    assert outcomes == {"charge": "unknown", "ends": "failed", "ask": "cancelled"}
    assert verdict.ok, verdict


async def test_timed_out_call_is_cancelled_with_unknown_outcome(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    clock, work, notes = ManualClock(), Gate(timeout=5), Notes()
    model = strict_model([Reply(calls=[Call("work", {})]), "done"])
    async with open_engine(model, tools=[work.tool], clock=clock, observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await work.entered.wait()
        await clock.advance(5)
        await engine.wait(chat.id)
        await anyio.wait_all_tasks_blocked()
    result = model.requests[1].messages[-1].result
    assert (result.is_error, result.outcome) == (True, "timed_out")
    assert result.output == "work timed out after 5 s. Its outcome is unknown: it may or may not have taken effect."
    assert (work.runs[0].cancelled, work.cancelled) == (True, 1)
    assert [run.outcome for run in notes.runs] in (["timed_out"], ["cancelled"])


# What is recorded, and when


def starts_in(records: Sequence[AuditRecord]) -> int:
    """Return how often calls have started, with their reply or later."""
    return sum(write.kind.startswith("call:started") for record in records for write in record.writes)


async def test_every_start_is_recorded_before_the_tool_runs(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """After a crash at any moment the next holder must not run it as if it were new."""
    seen: list[tuple[str, int, list[Any]]] = []
    engines: list[Engine] = []
    entered = anyio.Event()

    def noting(name: str) -> Any:
        @tool(name=name, description="Note.", crash="at_least_once")
        async def note(context: ToolContext) -> str:
            records = await engines[-1].audit(context.chat_id)
            starts = starts_in(records)
            answered = await engines[-1].messages(context.chat_id)
            results = [message.result.output for message in answered if message.result is not None]
            seen.append((name, starts, results))
            if len(seen) == 2:
                entered.set()
                await anyio.sleep_forever()
            return name

        return note

    tools = [noting(name) for name in "abc"]
    model = strict_model([Reply(calls=[Call(name, {}, id=name) for name in "abc"]), "done"])
    async with open_engine(model, tools=tools, settings=AT_ONCE) as engine:
        engines.append(engine)
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await entered.wait()
    async with open_engine(model, tools=tools, settings=AT_ONCE) as engine:
        engines.append(engine)
        assert (await engine.wait(chat.id)).state == "waiting"
    assert seen == [("a", 1, []), ("b", 2, ["a"]), ("b", 3, ["a"]), ("c", 4, ["a", "b"])]


@pytest.mark.parametrize("parallel", [True, False])
async def test_interrupted_calls_are_reconciled_first(
    open_engine: OpenEngine, strict_model: MakeModel, *, parallel: bool
) -> None:
    cut_off = {"a", "b"} if parallel else {"a"}
    entered: list[str] = []
    reconciled: list[str] = []
    known: list[Any] = []
    engines: list[Engine] = []
    all_entered = anyio.Event()

    async def reconcile(context: ToolContext) -> str:
        reconciled.append(context.call_id)
        return f"{context.call_id} was done"

    @tool(parallel_safe=parallel, crash="at_least_once", reconcile=reconcile)
    async def work(context: ToolContext) -> str:
        """Work."""
        entered.append(context.call_id)
        if len(entered) == len(cut_off):
            all_entered.set()
        if context.call_id in cut_off:
            await anyio.sleep_forever()
        messages = await engines[-1].messages(context.chat_id)
        known.extend(message.result.output for message in messages if message.result is not None)
        return "worked"

    settings = Settings(coalesce=0, shutdown_grace=0, parallel_cap=2)
    model = strict_model([Reply(calls=[Call("work", {}, id=name) for name in (*sorted(cut_off), "z")])])
    async with open_engine(model, tools=[work], settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await all_entered.wait()
    async with open_engine(strict_model(["done"]), tools=[work], settings=settings) as engine:
        engines.append(engine)
        await engine.wait(chat.id)
        outputs = [message.result.output for message in await engine.messages(chat.id) if message.result is not None]
        starts = starts_in(await engine.audit(chat.id))
    assert reconciled == sorted(cut_off)
    assert outputs == [*(f"{name} was done" for name in reconciled), "worked"]
    assert entered == [*reconciled, "z"]
    assert starts == len(entered), "what was only reconciled was not started again"
    assert "a was done" in known, "what became of a call is recorded before the next one runs"


async def test_reconcile_that_times_out_is_cancelled(
    open_engine: OpenEngine, strict_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the crash class decides, as for a tool that cannot tell."""
    contexts: list[ToolContext] = []
    reconciled, ended = anyio.Event(), anyio.Event()

    async def reconcile(context: ToolContext) -> str:
        contexts.append(context)
        reconciled.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    work = Gate(crash="at_most_once", reconcile=reconcile, timeout=30)
    model, clock = strict_model([Reply("", calls=[Call("work", {}, id="w")]), "done"]), ManualClock()
    options = {"settings": AT_ONCE, "tools": [work.tool], "clock": clock}
    async with open_engine(model, **options) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await work.entered.wait()
    async with open_engine(model, **options) as engine:
        await reconciled.wait()
        await clock.advance(29)
        assert not contexts[0].cancelled
        assert (await engine.get_chat(chat.id)).state == "executing_tools"
        await clock.advance(1)
        await engine.wait(chat.id)
        with anyio.fail_after(60):
            await ended.wait()
        answer = (await engine.messages(chat.id))[2].result
    assert (contexts[0].cancelled, len(work.runs), answer.outcome) == (True, 1, "unknown")
    (line,) = [record.getMessage() for record in caplog.records if "reconcile_timed_out" in record.getMessage()]
    assert all(word in line for word in (f"chat_id={chat.id}", "call_id=w", "work"))


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_call_with_erased_arguments_does_not_run(
    open_engine: OpenEngine, strict_model: MakeModel, where: str
) -> None:
    """The result would repeat erased content."""
    latch = Latch()
    runs: list[str] = []

    @tool(parallel_safe=where == "here")
    async def look_up(what: str) -> str:
        """Look up."""
        runs.append(what)
        await latch.pass_through()
        return f"looked up {what}"

    calls = [Call("look_up", {"what": what}) for what in ("first", "a secret")]
    settings = Settings(coalesce=0, parallel_cap=1)
    model = strict_model([Reply(calls=calls), "done"])
    async with (
        open_engine(model, tools=[look_up], settings=settings) as engine,
        open_engine(model, settings=Settings(run_worker=False)) as other,
    ):
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await latch.entered.wait()
        asking = (await engine.messages(chat.id))[-1]
        await (engine if where == "here" else other).erase_message(chat.id, asking.id)
        latch.open()
        await engine.wait(chat.id)
        results = [message.result.output for message in await engine.messages(chat.id) if message.result is not None]
    assert (runs, results) == (["first"], ["looked up first", "Its arguments were erased."])


# Running calls


def context(call_id: str = "a") -> ToolContext:
    return ToolContext.for_tests(call_id=call_id)


def running(*call_ids: str) -> RunningCalls:
    chat = ToolContext.for_tests().chat
    return RunningCalls(ToolEnvironment(chat, None), {call_id: RunningCall(context(call_id)) for call_id in call_ids})


def fatal(call: ToolCall, error: FatalToolError) -> CallOutcome:
    return failed(call, str(error))


A, B = local("a"), local("b")


async def test_calls_are_taken_in_the_order_they_finish() -> None:
    calls = running("a", "b")
    assert (calls.has_more, calls.has_results) == (True, False)
    calls.finish(B, failed(B, "second"))
    calls.finish(B, failed(B, "again"))
    assert (calls.has_more, calls.has_results, [*calls.calls]) == (True, True, ["a"])
    calls.finish(A, failed(A, "first"))
    assert (calls.has_more, calls.has_results, calls.calls) == (True, True, {})
    assert await calls.next_finished() == (B, failed(B, "second"))
    assert await calls.next_finished() == (A, failed(A, "first"))
    assert (calls.has_more, calls.has_results) == (False, False)


async def test_cancel_collects_calls_that_have_not_started() -> None:
    calls = running("a", "b", "c")
    calls.finish(B, failed(B, "it broke"))
    calls.calls["c"].begin()
    runs = [*calls.calls.values()]
    text = "Cancelled: the chat ended in an error before a result was there."
    never_ran = CallOutcome(call_id="a", status=CallStatus.cancelled, output=text, is_error=True, synthetic=True)
    assert calls.cancel_and_collect(fatal) == [failed(B, "it broke"), never_ran]
    assert ([run.context.cancelled for run in runs], calls.has_more) == ([True, True], False)
