"""Acknowledged changes are stored: they survive the death of the process, or an event withdraws them.

By the time a call returns or a subscriber sees an event, a separate connection finds it in the database. Then the
process dies, and the next one continues from there. Seen red: parts that are visible before they are stored; a commit
that is acknowledged before it is made; a message whose receipt is not stored.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from support.exploring import seeds_until
from support.lives import STORES, lives_in, named
from support.mortal import MortalEngine, Mortals, MortalStore
from support.sql_by_hand import by_hand
from turnwise import ChatState, ClientTool, EngineClosed, Event, ModelError, StoreError, ToolResult, tool
from turnwise.engine.prompt.views import user_view
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import IllegalTransition
from turnwise.states.transcript import fold
from turnwise.testing.simulation.checks import problems_of

pytestmark = pytest.mark.hypothesis
ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})
WORKING = (ChatState.pending, ChatState.streaming, ChatState.executing_tools)
SLOW = ("change", "create", "claim", "append_events")


@tool(crash="at_least_once")
async def look() -> str:
    """Look around."""
    await checkpoint()
    return "seen"


class SlowStore(MortalStore):
    """Waits before each commit, which reveals early announcements."""

    def __getattr__(self, name: str) -> Any:
        done = super().__getattr__(name)
        return partial(self._later, done) if name in SLOW else done

    async def _later(self, done: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        await anyio.sleep(0.002)
        return await done(*args, **options)


class Witness:
    """Follows a chat on the live process, and checks every event against the database."""

    def __init__(self, url: str, met: Counter[str]) -> None:
        self.url = url
        self.met = met
        self.seen: list[Event] = []
        self.moved = anyio.Event()

    async def follow(self, engine: MortalEngine, chat_id: str, random: Random) -> None:
        with contextlib.suppress(EngineClosed, StoreError):  # it has died
            async for event in engine.events(chat_id, after=self.seen[-1].seq if self.seen else 0):
                if event.kind == "part" or random.random() < 0.3:
                    assert await self.is_stored(chat_id, event.seq), event
                    self.met["looked up"] += 1
                self.seen.append(event)
                self.moved.set()

    async def pass_by(self, count: int, engine: MortalEngine, chat_id: str) -> None:
        """Wait for so many events, or until none can follow: the chat rests, or waits for the clock."""
        for _ in range(count):
            self.moved = anyio.Event()
            is_at_work = (await engine.get_chat(chat_id)).state in WORKING
            if not is_at_work or (self.seen and self.seen[-1].kind == "retry"):
                return
            with anyio.move_on_after(1):
                await self.moved.wait()

    async def is_stored(self, chat_id: str, seq: int) -> bool:
        number = f"(SELECT number FROM chats WHERE id = '{chat_id}')"  # noqa: S608 - no one else's words
        sql = f"SELECT 1 FROM {{}} WHERE chat = {number} AND seq = {seq}"  # noqa: S608 - as above
        if self.url.startswith("sqlite"):  # at once: nothing else may happen in between
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as on:
                return on.execute(sql.format("events")).fetchone() is not None
        return bool(await by_hand(self.url, f"{sql.format('events')} UNION {sql.format('partial_events')}"))


@pytest.mark.parametrize("place", STORES)
async def test_what_was_acknowledged_survives(place: str, request: pytest.FixtureRequest) -> None:
    url, met = lives_in(place, request).url, Counter[str]()
    rare = {"sqlite": 5, "postgres": 1}[place]
    least = dict.fromkeys(("message", "results", "interrupt", "title"), rare)
    least |= {"died": 10 * rare, "looked up": 10 * rare}
    for seed in seeds_until(met, least, lives={"sqlite": 9, "postgres": 3}[place]):
        with named(seed):
            await live(url, Random(seed), met)  # noqa: S311 - no secret


async def live(url: str, random: Random, met: Counter[str]) -> None:
    def reply(_: object) -> Reply:
        if random.random() < 0.2:
            return Reply("no ", error=ModelError("overloaded"), error_after=1)
        names = random.choice([[], ["look"], ["ask_user"], ["ask_user", "look"]])
        return Reply("one two three ", chunks=4, calls=[Call(name, {}) for name in names])

    witness = Witness(url, met)
    async with Mortals(url, ScriptedModel(reply), [look], store=SlowStore) as mortals:
        engine = await mortals.start()
        chat_id = (await engine.create_chat(client_tools=[ASK])).id
        for number in range(6):
            witness.moved = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(witness.follow, engine, chat_id, random)
                for turn in range(2):
                    acknowledged = await do_something(engine, chat_id, random, f"{number}.{turn}", met)
                    await witness.pass_by(random.randrange(4), engine, chat_id)
                await mortals.kill()
                tasks.cancel_scope.cancel()
            met["died"] += 1
            engine = await mortals.start()
            await acknowledged(engine)
        with contextlib.suppress(IllegalTransition):
            await engine.interrupt(chat_id)
        await engine.wait(chat_id)
        await check(engine, chat_id, witness)


async def do_something(
    engine: MortalEngine, chat_id: str, random: Random, text: str, met: Counter[str]
) -> Callable[[MortalEngine], Awaitable[None]]:
    """Act as a client; return a check that must hold from then on."""
    chat = await engine.get_chat(chat_id)
    results = [ToolResult(call.call_id, text) for call in chat.open_calls]
    if chat.state is ChatState.requires_action and random.random() < 0.8:
        receipt = await engine.submit_tool_results(chat_id, results)
        met["results"] += 1

        async def check(after: MortalEngine) -> None:
            again = await after.submit_tool_results(chat_id, results)
            assert (again.replayed, again.receipt_id) == (True, receipt.receipt_id)

    elif chat.state in (ChatState.pending, ChatState.streaming) and random.random() < 0.4:
        with contextlib.suppress(IllegalTransition):  # it has come to rest meanwhile
            await engine.interrupt(chat_id, reason=text)
            met["interrupt"] += 1

        async def check(after: MortalEngine) -> None:
            state = (await after.get_chat(chat_id)).state
            assert text in [record.reason for record in await after.audit(chat_id)] or state is ChatState.waiting

    elif random.random() < 0.2:
        await engine.rename(chat_id, text)
        met["title"] += 1

        async def check(after: MortalEngine) -> None:
            assert (await after.get_chat(chat_id)).title == text

    else:
        sent = await engine.send_message(chat_id, text, client_id=text)
        met["message"] += 1

        async def check(after: MortalEngine) -> None:
            again = await after.send_message(chat_id, text, client_id=text)
            assert (again.replayed, again.message_id) == (True, sent.message_id)
            transcript = await after.transcript(chat_id)
            ids = [message.id for message in (*transcript.messages, *transcript.queue)]
            assert ids.count(sent.message_id) == 1

    return check


async def check(engine: MortalEngine, chat_id: str, witness: Witness) -> None:
    """Visible events are stored unchanged, and all of them fold to the history."""
    stored = [event async for event in engine.events(chat_id, follow=False)]
    assert witness.seen == stored[: len(witness.seen)]
    assert fold(stored).messages == user_view(await engine._store.history(chat_id))
    assert await problems_of(engine._store, chat_id) == []
