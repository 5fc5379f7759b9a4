"""An at-most-once tool never starts twice for one call; an at-least-once tool runs again under the same key.

Seen red: a call that may start although it has started; a crash that leaves a started call open; an idempotency key
that differs once the call has started.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest

from support.exploring import seeds_until
from support.lives import PLACES, SLOW_STORES, StoredLife, Walk, lives_in, named
from support.mortal import Mortals
from turnwise import ChatState, ToolContext, tool
from turnwise.engine.tools.declare import Tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import IllegalTransition
from turnwise.states.names import CallStatus
from turnwise.states.triggers import CallStarted
from turnwise.states.writes import PutCall

pytestmark = pytest.mark.hypothesis


@pytest.mark.parametrize("place", PLACES)
def test_a_start_is_granted_once(place: str, request: pytest.FixtureRequest) -> None:
    """For any caller, after any crash, and for two callers at once."""
    met = lives_in(place, request).each(live, table=150, sqlite=20, postgres=6, tools=("once", "local"), max_steps=None)
    least = {"table": 50, "sqlite": 20, "postgres": 5}[place]
    assert met["lost with started calls"] >= least
    assert met["asked to start again"] >= least


def live(walk: Walk) -> None:
    walk.chance_of_overflow, walk.chance_of_calls = 0, 0.95
    for _ in range(30):
        runs = walk.facts.state is ChatState.executing_tools
        if runs and walk.chance(0.4):
            start_again(walk)
        elif runs and walk.chance(0.3):
            walk.lose_worker()
        else:
            walk.meddle() if walk.chance(0.1) else walk.go_on()
        started = Counter(
            write.call.call_id
            for decision in walk.life.decisions
            for write in decision.writes
            if isinstance(write, PutCall) and write.call.status is CallStatus.started
            if write.call.crash == "at_most_once"
        )
        assert max(started.values(), default=1) == 1


def start_again(walk: Walk) -> None:
    """Start a call twice, concurrently with two processes; an at-most-once call refuses the second start."""
    life, planned = walk.life, [call for call in walk.facts.open_calls if call.status is CallStatus.planned]
    if not planned:
        walk.go_on()
        return
    call = walk.random.choice(planned)
    if isinstance(life, StoredLife) and life.facts.lease is not None:
        start = CallStarted(token=life.facts.lease.token, call_id=call.call_id)
        works = [
            process.writer.change(life.chat_id, start, actor=life.process.actor) for process in life.database.processes
        ]
        outcomes = life.database.at_once(*works)
        refused = sum(isinstance(outcome, IllegalTransition) for outcome in outcomes)
        for outcome in outcomes:
            if not isinstance(outcome, IllegalTransition):
                life.decisions += outcome.decisions
        life.read()
        assert refused == (call.crash == "at_most_once")
    else:
        life.start(call.call_id)
        if call.crash == "at_most_once":
            with pytest.raises(IllegalTransition):
                life.start(call.call_id)
    walk.met["asked to start again"] += 1


# Engines that die while their tools run


@dataclass
class Outside:
    """The acts of tools outside."""

    random: Random
    starts: Counter[str] = field(default_factory=Counter)
    keys: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    slow: anyio.Event = field(default_factory=anyio.Event)

    async def act(self, context: ToolContext[Any]) -> str:
        """Count a start, then often hang."""
        self.starts[context.call_id] += 1
        self.keys[context.call_id].add(context.idempotency_key)
        if self.random.random() < 0.6:
            self.slow.set()
            await anyio.sleep_forever()
        return "done"

    def tools(self) -> list[Tool]:
        @tool
        async def pay(context: ToolContext[Any]) -> str:
            """Pay."""
            return await self.act(context)

        @tool(crash="at_least_once")
        async def note(context: ToolContext[Any]) -> str:
            """Note something."""
            return await self.act(context)

        return [pay, note]


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_no_tool_runs_twice_after_any_crash(place: str, request: pytest.FixtureRequest) -> None:
    url, met = lives_in(place, request).url, Counter[str]()
    rare = {"sqlite": 10, "postgres": 2}[place]
    least = {"killed in a tool": 5 * rare, "run again": rare, "never run again": rare}
    for seed in seeds_until(met, least, lives={"sqlite": 15, "postgres": 4}[place]):
        with named(seed):
            await die_in_tools(url, Random(seed), met)  # noqa: S311 - no secret


async def die_in_tools(url: str, random: Random, met: Counter[str]) -> None:
    outside, serial = Outside(random), itertools.count()

    def reply(_: object) -> Reply:
        names = [random.choice(["pay", "note"]) for _ in range(random.randrange(4))]
        return Reply("words", calls=[Call(name, {}, id=f"{name}{next(serial)}") for name in names])

    async with Mortals(url, ScriptedModel(reply), outside.tools()) as mortals:
        engine = await mortals.start()
        chat_id = (await engine.create_chat()).id
        await engine.send_message(chat_id, "go on")
        for _ in range(5):
            outside.slow = anyio.Event()
            with anyio.move_on_after(60):
                async with anyio.create_task_group() as either:
                    either.start_soon(_first, either, outside.slow.wait)
                    either.start_soon(_first, either, partial(engine.wait, chat_id))
            met["killed in a tool"] += outside.slow.is_set()
            await mortals.kill()
            engine = await mortals.start()
            if (await engine.get_chat(chat_id)).state == ChatState.waiting:
                await engine.send_message(chat_id, "go on")
        await engine.interrupt(chat_id)
        await engine.wait(chat_id)
        assert (await engine.verify(chat_id)).ok
    for call_id, starts in outside.starts.items():
        assert len(outside.keys[call_id]) == 1
        assert starts == 1 or call_id.startswith("note")
        met["run again"] += starts > 1
        met["never run again"] += starts == 1 and call_id.startswith("pay")


async def _first(scope: Any, work: Any) -> None:
    await work()
    scope.cancel_scope.cancel()
