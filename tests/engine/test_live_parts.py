"""The parts of a reply are stored in small batches, then shown; the last batch comes with the end of the reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from tests.engine.leased import leased_chat

from support.latches import Latch
from turnwise import ModelPart, Settings, StoreError
from turnwise.engine.jobs.live_parts import LiveParts
from turnwise.providers.reply_builder import ReplyBuilder
from turnwise.states.events import PartEvent
from turnwise.states.names import ChatState
from turnwise.testing.clock import ManualClock


class Attempt:
    """The live parts of an attempt at the third step, its second."""

    def __init__(self, coalesce: float = 0) -> None:
        self.leased, self.shelf = leased_chat(settings=Settings(coalesce=coalesce))
        self.clock = cast("ManualClock", self.leased.runtime.clock)
        self.builder, self.ended = ReplyBuilder(), list[Exception]()
        self.live = LiveParts(self.leased, self.builder, self.ended.append)

    def hear(self, text: str) -> None:
        """Take a delta of the reply, as the job does."""
        if self.builder.add(ModelPart("text_delta", text=text)):
            self.live.changed()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let the engine's tasks run meanwhile."""
        with anyio.fail_after(60):
            async with self.leased.runtime.tasks.running():
                yield

    @property
    def batches(self) -> list[str]:
        """What was stored, or is about to be: the text of each batch."""
        return [
            "".join(event.part.delta or "" for event in batch if isinstance(event, PartEvent))
            for _, _, batch in self.shelf.journaled
        ]


async def until(happened: Callable[[], object]) -> None:
    while not happened():
        await anyio.lowlevel.checkpoint()


async def a_while() -> None:
    """Let every timer that is due ring, and every task go on."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


async def test_parts_of_one_window_are_stored_together() -> None:
    attempt = Attempt()
    async with attempt.running():
        with attempt.shelf.broadcaster.listen("c") as follower:
            for word in ("one ", "two ", "three"):
                attempt.hear(word)
            assert attempt.batches == [], "hearing does not wait for the store"
            await until(lambda: follower.take(-1))
            await a_while()
            assert attempt.batches == ["one two three"]
            attempt.hear(" four")
            await until(lambda: len(attempt.batches) == 2)
    (token, state, (event,)), _ = attempt.shelf.journaled
    assert (token, state) == (1, ChatState.streaming)
    assert isinstance(event, PartEvent)
    assert (event.step, event.attempt, event.index, event.part.type) == (3, 2, 0, "text")
    assert await attempt.live.close() == []


async def test_parts_wait_for_the_running_batch() -> None:
    attempt, latch = Attempt(), Latch()
    attempt.shelf.storing = latch.pass_through
    async with attempt.running():
        attempt.hear("one ")
        await latch.entered.wait()
        attempt.hear("two ")
        attempt.hear("three")
        await a_while()
        assert attempt.batches == ["one "], "one batch at a time"
        latch.open()
        await until(lambda: len(attempt.batches) == 2)
        await a_while()
    assert attempt.batches == ["one ", "two three"]


@pytest.mark.parametrize("way", ["stop", "end", "close"])
async def test_nothing_is_stored_after_the_end(way: str) -> None:
    """What is left comes with the end; the batch in flight is waited for, except by a stop."""
    attempt, latch, ended = Attempt(), Latch(), anyio.Event()
    attempt.shelf.storing = latch.pass_through

    async def end() -> None:
        if way == "stop":
            attempt.live.stop()
        else:
            await (attempt.live.end() if way == "end" else attempt.live.close())
        ended.set()

    async with attempt.running():
        attempt.hear("one ")
        await latch.entered.wait()
        attempt.hear("two ")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            await a_while()
            assert ended.is_set() == (way == "stop")
            attempt.hear("three")
            latch.open()
        await a_while()
        attempt.hear(" four")
        await a_while()
    assert attempt.batches == ["one "]
    for _ in range(2):  # a commit that has to be repeated asks again
        left = await attempt.live.close()
        assert "".join(event.part.delta or "" for event in left) == "two three four"


async def test_parts_wait_for_an_unavailable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model goes on meanwhile: to end its attempt would be to pay for the reply again."""
    monkeypatch.setattr("turnwise.engine.leased_chat.AGAIN_AFTER", 0)
    attempt, failures = Attempt(), [StoreError("away", passing=True) for _ in range(2)]

    async def fail() -> None:
        if failures:
            raise failures.pop()

    attempt.shelf.storing = fail
    async with attempt.running():
        with attempt.shelf.broadcaster.listen("c") as follower:
            attempt.hear("one ")
            await until(lambda: follower.take(-1) or attempt.ended)
        attempt.hear("two")
        await until(lambda: attempt.batches[-1] == "two" or attempt.ended)
        await a_while()
        assert (attempt.ended, attempt.batches) == ([], ["one ", "one ", "one ", "two"])


async def test_unstorable_parts_end_the_attempt() -> None:
    attempt, latch = Attempt(), Latch()

    async def fail() -> None:
        await latch.pass_through()
        raise StoreError("the disk is full")

    attempt.shelf.storing = fail
    async with attempt.running():
        attempt.hear("one ")
        await latch.entered.wait()
        attempt.hear("two ")
        assert (attempt.live.failure, attempt.ended) == (None, [])
        latch.open()
        await until(lambda: attempt.live.failure)
        await a_while()
        attempt.hear("three")
        await a_while()
        assert attempt.ended == [attempt.live.failure]
        with pytest.raises(StoreError, match="disk is full"):
            await attempt.live.close()
    assert attempt.batches == ["one "]
