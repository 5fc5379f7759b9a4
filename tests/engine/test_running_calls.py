"""The calls that run now: taken in the order in which they end, stopped, and abandoned."""

from __future__ import annotations

from typing import Any, cast

import anyio

from support.life import local
from support.runtimes import A_CHAT, tool_context
from turnwise import ToolContext
from turnwise.engine.jobs.running_calls import Run, Running, Surroundings
from turnwise.engine.tools.toolbox import failed
from turnwise.engine.user_code import UserCall
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


async def test_calls_are_taken_in_the_order_in_which_they_ended_and_each_once() -> None:
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


async def test_who_waits_for_a_call_sleeps_until_one_ends() -> None:
    calls = running("a", "b")
    calls.finish(A, failed(A, "first"))
    await calls.next_finished()
    taken: list[Any] = []

    async def take() -> None:
        taken.append(await calls.next_finished())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            assert taken == []
            calls.finish(B, failed(B, "second"))
    assert taken == [(B, failed(B, "second"))]


async def test_why_a_call_could_not_begin_is_raised_but_results_come_first() -> None:
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


async def test_what_is_stopped_before_it_has_begun_never_does_and_is_no_riddle() -> None:
    calls = running("a", "b", "c")
    calls.finish(B, failed(B, "it broke"))
    calls.calls["c"].begin()
    runs = [*calls.calls.values()]
    said = "Cancelled: the chat ended in an error before a result was there."
    never_ran = CallOutcome(call_id="a", status=CallStatus.cancelled, output=said, is_error=True, synthetic=True)
    assert calls.stop(fatal) == [failed(B, "it broke"), never_ran]
    assert ([run.context.cancelled for run in runs], calls.has_more) == ([True, True], False)


class BeginsLate:
    """A call of a blocking tool, which begins in its thread in the moment in which it is told to end."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def abandon(self) -> None:
        self._run.begin()


async def test_what_begins_in_the_moment_in_which_it_is_stopped_is_not_said_to_have_never_begun() -> None:
    """It may have done what it is for: only once it was told to end does nothing begin any more."""
    calls = running("a")
    run = calls.calls["a"]
    run.call = cast("UserCall[None]", BeginsLate(run))
    assert calls.stop(fatal) == []
    assert run.began


async def test_of_two_calls_that_end_the_chat_the_second_has_failed_too() -> None:
    """The chat ends with the first one's reason; what became of the second is no riddle."""
    calls = running("a", "b")
    calls.finish(A, FatalToolError("out of money"))
    calls.finish(B, FatalToolError("out of money, too"))
    assert isinstance((await calls.next_finished())[1], FatalToolError)
    assert calls.stop(fatal) == [failed(B, "out of money, too")]
    assert not calls.has_more


async def test_what_was_abandoned_is_told_and_what_it_still_returns_is_dropped() -> None:
    calls = running("a", "b")
    runs = dict(calls.calls)
    calls.finish(A, failed(A, "first"))
    calls.abandon()
    calls.finish(B, failed(B, "too late"))
    assert [runs[name].context.cancelled for name in "ab"] == [False, True]
    assert [runs[name].result is None for name in "ab"] == [False, True]
    await calls.next_finished()
    assert not calls.has_more
