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
