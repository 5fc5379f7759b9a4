"""The calls that run now: taken in the order in which they end, stopped, and abandoned."""

from __future__ import annotations

from typing import Any

import anyio

from support.life import local
from support.runtimes import A_CHAT, tool_context
from turnwise import ToolContext
from turnwise.engine.jobs.running_calls import Run, Running, Surroundings
from turnwise.engine.tools.toolbox import failed


def context(call_id: str = "a") -> ToolContext:
    return tool_context(call_id=call_id)


def running(*call_ids: str) -> Running:
    return Running(Surroundings(A_CHAT, None), {call_id: Run(context(call_id)) for call_id in call_ids})


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
    outcomes = calls.stop()
    assert [(one.call_id, str(one.status)) for one in outcomes] == [("b", "failed"), ("a", "cancelled")]
    assert ([run.context.cancelled for run in runs], calls.has_more) == ([True, True], False)


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
