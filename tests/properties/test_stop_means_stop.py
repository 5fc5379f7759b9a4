"""After an interrupt the answer shows nothing more and no tool starts; its visible part is stored.

Seen red: an append that stores parts in whichever state the chat is in; a tool that may start in an interrupted chat; a
partial answer that is not kept.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from support.exploring import seeds_until
from support.life import summary_of, text_parts
from support.lives import PLACES, SLOW_STORES, StoredLife, Walk, lives_in, named
from turnwise import ChatState, Engine, ModelError, Settings, ToolContext, tool
from turnwise.engine.tools.declare import Tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states import triggers as t
from turnwise.states.arguments import StepReply
from turnwise.states.errors import IllegalTransition, StaleLease
from turnwise.states.events import PartDelta, PartEvent, StatusEvent
from turnwise.states.table import BUSY
from turnwise.testing.simulation.checks import problems_of

pytestmark = pytest.mark.hypothesis
S = ChatState


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_a_stopped_answer_is_taken(place: str, request: pytest.FixtureRequest) -> None:
    """For every call of the holder under its token, which is the newest."""
    met = lives_in(place, request).each(live, table=160, sqlite=20, postgres=5, max_steps=None)
    states = [f"stopped in {state}" for state in (S.streaming, S.executing_tools, S.requires_action)]
    if place == "table":
        assert {state: met[state] for state in states if met[state] < 50} == {}
    least = {"table": 50, "sqlite": 4, "postgres": 1}[place]
    assert sum(met[state] for state in states) >= 3 * least
    assert met["stopped in compacting"] >= least // 5
    assert met["part kept"] >= least


def live(walk: Walk) -> None:
    walk.chance_of_overflow = 0.2
    for _ in range(4):
        walk.live(walk.random.randrange(2, 14), meddling=0.05)
        if walk.facts.state in BUSY:
            stop(walk)


def stop(walk: Walk) -> None:
    life, facts = walk.life, walk.facts
    walk.met[f"stopped in {facts.state}"] += 1
    still_open = {call.call_id for call in facts.open_calls}
    life.interrupt()
    assert walk.facts.state is S.interrupted
    late = {
        t.AttemptStarted: {},
        t.StepFinished: {"reply": StepReply(parts=text_parts("late"))},
        t.Compacted: {"summary": summary_of("late")},
        t.ToolsFinished: {},
        **({t.CallStarted: {"call_id": min(still_open)}} if still_open else {}),
    }
    token = walk.facts.lease.token if walk.facts.lease else None
    for trigger, arguments in late.items():
        with pytest.raises(IllegalTransition):
            life.fire(trigger, token=token, **arguments)
    if isinstance(life, StoredLife):
        show_late(life, token)
    before = len(life.messages)
    partial = life.partial(text="shown") if walk.facts.step.attempt_open and facts.state is S.streaming else None
    if walk.facts.lease is None:
        life.claim()
    life.settle(partial)
    new = life.messages[before:]
    results = {message.result.call_id: message.result.outcome for message in new if message.result}
    assert results == dict.fromkeys(still_open, "interrupted")
    stored = [message for message in new if message.role == "assistant"]
    assert [(message.partial, message.text) for message in stored] == ([(True, "shown")] if partial else [])
    walk.met["part kept"] += len(stored)


def show_late(life: StoredLife, token: int | None) -> None:
    step = life.facts.step
    part = PartDelta(type="text", delta="late")
    event = PartEvent(chat_id=life.chat_id, step=step.number, attempt=step.attempt, index=0, part=part)
    for state in (S.streaming, S.executing_tools, S.compacting):
        assert isinstance(
            life.unchanged(life.store.append_events(life.chat_id, token or 0, state, [event])), StaleLease
        )


# Engines that are stopped wherever they are, by themselves and by another process


@dataclass
class Work:
    """Acts outside, with their times."""

    random: Random
    url: str
    late: list[str] = field(default_factory=list)
    """Tools that started after their own process had interrupted the chat."""
    by_itself: bool = True
    starts: list[str] = field(default_factory=list)
    moved: anyio.Event = field(default_factory=anyio.Event)
    rests: bool = False

    def reply(self, _: object) -> Reply:
        """Answer in several parts, call tools, stall, or fail with a back-off."""
        if self.random.random() < 0.35:
            return Reply("one two three four five ", chunks=4, stall_after=self.random.randrange(1, 6))
        if self.random.random() < 0.1:
            return Reply("so ", chunks=1, error=ModelError("overloaded"), error_after=2)
        calls = [Call("work", {}) for _ in range(self.random.choice([0, 3, 6]))]
        return Reply("one two three four five ", chunks=4, calls=calls)

    def tools(self) -> list[Tool]:
        @tool
        async def work(context: ToolContext[Any]) -> str:
            """Work for a while."""
            self.starts.append(context.call_id)
            if self.by_itself and self.is_interrupted(context.chat_id):
                self.late.append(context.call_id)
            self.moved.set()
            for _ in range(self.random.randrange(4)):
                await checkpoint()
            return "done"

        return [work]

    def is_interrupted(self, chat_id: str) -> bool:
        """Read the database without yielding to the event loop."""
        if not self.url.startswith("sqlite"):
            return False
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as on:
            ((state,),) = on.execute("SELECT state FROM chats WHERE id = ?", (chat_id,)).fetchall()
        return bool(state == S.interrupted)

    async def follow(self, engine: Engine, chat_id: str) -> None:
        async for event in engine.events(chat_id):
            if isinstance(event, StatusEvent):
                self.rests = event.state in (S.waiting, S.error)
            self.moved.set()

    async def pass_by(self, count: int, *, starts: bool) -> None:
        """Wait for that many starts of tools or events, or until nothing more happens."""
        before = len(self.starts)
        while not self.rests and count > (len(self.starts) - before if starts else 0):
            self.moved = anyio.Event()
            with anyio.move_on_after(0.3) as stalls:
                await self.moved.wait()
            if stalls.cancelled_caught:
                return
            count -= not starts


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_an_engine_stops(place: str, request: pytest.FixtureRequest) -> None:
    url, met = lives_in(place, request).url, Counter[str]()
    rare = {"sqlite": 2, "postgres": 1}[place]
    least = dict.fromkeys(("stopped while it streamed", "stopped while tools ran"), 2 * rare)
    least["stopped by another process"] = rare
    for seed in seeds_until(met, least, lives={"sqlite": 5, "postgres": 4}[place]):
        with named(seed):
            await stop_often(url, Random(seed), met)  # noqa: S311 - no secret


async def stop_often(url: str, random: Random, met: Counter[str]) -> None:
    work = Work(random, url)
    settings = Settings(coalesce=0, durability="normal", poll_interval=0.05, renew_every=5)
    apart = Settings(run_worker=False, durability="normal")
    async with (
        Engine(url, model=ScriptedModel(work.reply), tools=work.tools(), settings=settings) as engine,
        Engine(url, model=ScriptedModel("."), settings=apart) as other,
        anyio.create_task_group() as tasks,
    ):
        chat_id = (await engine.create_chat()).id
        tasks.start_soon(work.follow, engine, chat_id)
        for _ in range(8):
            work.rests = False
            await engine.send_message(chat_id, "go on", when_busy="interrupt")
            starts = random.random() < 0.5
            await work.pass_by(random.randrange(1, 5) if starts else random.randrange(2, 16), starts=starts)
            work.by_itself = by_itself = random.random() < 0.6
            state = (await engine.get_chat(chat_id)).state
            if state in (S.waiting, S.error):
                continue
            try:
                await (engine if by_itself else other).interrupt(chat_id, reason="stop")
            except IllegalTransition:  # it has come to rest meanwhile
                continue
            started = len(work.starts)
            assert (await engine.wait(chat_id)).settled
            assert not by_itself or len(work.starts) == started
            met["stopped while it streamed"] += state is S.streaming
            met["stopped while tools ran"] += state is S.executing_tools
            met["stopped by another process"] += not by_itself
            await check(engine, chat_id)
        tasks.cancel_scope.cancel()
    assert work.late == []


async def check(engine: Engine, chat_id: str) -> None:
    """No part follows the interrupt; the visible text is stored; every call has its result."""
    assert await problems_of(engine._store, chat_id) == []
    state = None
    async for event in engine.events(chat_id, follow=False):
        if isinstance(event, StatusEvent):
            state = event.state
        elif isinstance(event, PartEvent):
            assert state is S.streaming
