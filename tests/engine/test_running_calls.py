"""The calls that run now: taken in the order in which they end, stopped, and abandoned."""

from __future__ import annotations

import anyio

from support.life import local
from support.runtimes import A_CHAT, tool_context
from turnwise import ToolContext
from turnwise.engine.jobs.running_calls import Run, Running, Surroundings
from turnwise.engine.tools.toolbox import failed
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import FatalToolError
from turnwise.states.names import CallStatus


def context(call_id: str = "a") -> ToolContext:
    return tool_context(call_id=call_id)


def running(*call_ids: str) -> Running:
    return Running(Surroundings(A_CHAT, None), {call_id: Run(context(call_id)) for call_id in call_ids})


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


async def test_break_off_raises_after_the_results() -> None:
    calls = running("a", "b")
    raised: list[str] = []

    async def take() -> None:
        try:
            await calls.next_finished()
        except LookupError as error:
            raised.append(str(error))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            calls.break_off(LookupError("the chat is gone"))
        assert raised == ["the chat is gone"]
        calls.finish(A, failed(A, "first"))
        assert (await calls.next_finished())[0] is A
        await take()
    assert len(raised) == 2


async def test_stop_cancels_calls_that_have_not_started() -> None:
    calls = running("a", "b", "c")
    calls.finish(B, failed(B, "it broke"))
    calls.calls["c"].begin()
    runs = [*calls.calls.values()]
    said = "Cancelled: the chat ended in an error before a result was there."
    never_ran = CallOutcome(call_id="a", status=CallStatus.cancelled, output=said, is_error=True, synthetic=True)
    assert calls.stop(fatal) == [failed(B, "it broke"), never_ran]
    assert ([run.context.cancelled for run in runs], calls.has_more) == ([True, True], False)


async def test_second_fatal_call_is_failed() -> None:
    """The chat ends with the first one's reason; what became of the second is no riddle."""
    calls = running("a", "b")
    calls.finish(A, FatalToolError("out of money"))
    calls.finish(B, FatalToolError("out of money, too"))
    assert isinstance((await calls.next_finished())[1], FatalToolError)
    assert calls.stop(fatal) == [failed(B, "out of money, too")]
    assert not calls.has_more


async def test_abandoned_call_drops_its_result() -> None:
    calls = running("a", "b")
    runs = dict(calls.calls)
    calls.finish(A, failed(A, "first"))
    calls.abandon()
    calls.finish(B, failed(B, "too late"))
    assert [runs[name].context.cancelled for name in "ab"] == [False, True]
    assert [runs[name].result is None for name in "ab"] == [False, True]
    await calls.next_finished()
    assert not calls.has_more
