"""Retention: workers archive chats that rest for long, delete archived ones, and nothing else, not a moment early."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.chats import contents
from tests.engine.subagents import asks, buyer, family, inbox_of, lead, sent, starts

from support.engines import MakeModel, OpenEngine
from support.eventful_life import look, rich_life, rich_script
from support.events import events_of
from support.sql_by_hand import raw
from support.stores import Delegate, stored_at
from turnwise import ChatArchived, ChatDeleted, ChatState, Engine, Event, Settings, ToolResult, fold, verify_export
from turnwise.persistence.protocol import ChatStore, Pruned
from turnwise.providers.scripted import ScriptedModel
from turnwise.testing.clock import ManualClock

DAY = 86_400.0
ARCHIVE = Settings(archive_after=30 * DAY)
DELETE = Settings(delete_after=60 * DAY)
BOTH = Settings(archive_after=30 * DAY, delete_after=60 * DAY)


@asynccontextmanager
async def on(database: Path, clock: ManualClock, *replies: Any, **options: Any) -> AsyncIterator[Engine]:
    url = f"sqlite:///{database}"
    async with Engine(url, model=ScriptedModel([*replies]), clock=clock, **options) as engine:
        yield engine


async def passes(clock: ManualClock, engine: Any, seconds: float) -> None:
    """Move the clock, and wait until the worker has swept."""
    await clock.advance(seconds)
    if engine._worker is not None:
        while await engine._worker._sweeper.sweep():
            pass


async def test_idle_chat_is_archived_and_then_deleted(database: Path) -> None:
    """Each time counts from the last change, archiving included. Log and tombstone name the system as actor."""
    clock = ManualClock()
    async with on(database, clock, "hi", settings=BOTH) as engine:
        chat = await engine.create_chat(title="the-title")
        await engine.ask(chat.id, "hello")
        await passes(clock, engine, 30 * DAY - 10)
        assert not (await engine.get_chat(chat.id)).archived
        await passes(clock, engine, 10)
        assert (await engine.get_chat(chat.id)).archived
        record = (await engine.audit(chat.id))[-1]
        assert (record.trigger, record.actor, record.reason) == ("archived", "system", "unchanged for 2.592e+06 s")
        with pytest.raises(ChatArchived):
            await engine.send_message(chat.id, "too late")
        await passes(clock, engine, 60 * DAY - 10)
        assert (await engine.get_chat(chat.id)).archived
        await passes(clock, engine, 10)
        left = await engine.tombstone(chat.id)
        assert (left.actor, left.records) == ("system", record.version)
        assert (left.deleted_at - record.at).total_seconds() == 60 * DAY
    assert b"the-title" not in raw(database)


@pytest.mark.parametrize("change", ["rename", "send", "unarchive and archive"])
async def test_every_change_restarts_the_retention_time(database: Path, change: str) -> None:
    clock = ManualClock()
    async with on(database, clock, "hi", "again", settings=BOTH) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        if change == "unarchive and archive":
            await engine.archive(chat.id)
        await passes(clock, engine, 29 * DAY)
        if change == "rename":
            await engine.rename(chat.id, "new")
        elif change == "send":
            await engine.ask(chat.id, "more")
        else:
            await engine.unarchive(chat.id)
            await engine.archive(chat.id)
        before = (await engine.get_chat(chat.id)).archived
        await passes(clock, engine, 29 * DAY)
        assert (await engine.get_chat(chat.id)).archived is before
        await passes(clock, engine, 2 * DAY)
        assert (await engine.get_chat(chat.id)).archived
        await passes(clock, engine, 61 * DAY)
        with pytest.raises(ChatDeleted):
            await engine.get_chat(chat.id)


async def test_archive_and_delete_settings_are_independent(database: Path) -> None:
    """Without `delete_after` an archived chat stays for ever; without `archive_after` users archive."""
    clock = ManualClock()
    async with on(database, clock, settings=ARCHIVE) as engine:
        chat = await engine.create_chat()
        await passes(clock, engine, 1000 * DAY)
        assert (await engine.get_chat(chat.id)).archived
    async with on(database, clock, settings=DELETE) as engine:
        await passes(clock, engine, 0)
        other = await engine.create_chat()
        await passes(clock, engine, 1000 * DAY)
        assert not (await engine.get_chat(other.id)).archived
        assert await engine.tombstone(chat.id) is not None
    async with on(database, clock) as engine:
        await passes(clock, engine, 1000 * DAY)
        assert not (await engine.get_chat(other.id)).archived


@pytest.mark.parametrize("background", [False, pytest.param(True, marks=pytest.mark.deep)])
async def test_subagent_that_owes_an_answer_is_not_archived(database: Path, *, background: bool) -> None:
    """Its parent would wait for ever; with the parent deleted it owes no answer."""
    clock = ManualClock()
    steps = [starts("look"), lambda _: "I go on"] if background else [asks("look")]
    agents = family(lead(*steps), buyer(), background=background)
    async with Engine(f"sqlite:///{database}", agents=agents, clock=clock, settings=ARCHIVE) as engine:
        parent = await sent(engine)
        (subagent,) = await inbox_of(engine)
        await engine.wait(parent.id, until=["waiting" if background else "requires_action"], timeout=60)
        for _ in range(3):
            await passes(clock, engine, 30 * DAY)
        assert not (await engine.get_chat(subagent.id)).archived
        assert (await engine.get_chat(parent.id)).archived is background
        if not background:
            await engine.archive(subagent.id)
            reason = (await engine.explain(parent.id)).reason
            assert reason.startswith(f"Waiting for subagents: {subagent.id}")
            assert reason.endswith(f"Subagent {subagent.id} is archived: unarchive it to go on.")
            await engine.unarchive(subagent.id)
        await engine.submit_tool_results(subagent.id, [ToolResult(subagent.open_calls[0].call_id, output=True)])
        assert (await engine.wait(subagent.id, timeout=60)).state == "waiting"
        if not background:
            assert (await engine.wait(parent.id, timeout=60)).state == "waiting"
        await engine.delete_chat(parent.id)
        await passes(clock, engine, 30 * DAY)
        with anyio.fail_after(60):
            while not (
                await engine.get_chat(subagent.id)
            ).archived:  # sweeps skip for a while what they could not change
                await passes(clock, engine, 60)


@pytest.mark.deep
async def test_many_chats_are_archived_in_one_pass(database: Path) -> None:
    """If one sweep is not enough, the next follows at once."""
    clock = ManualClock()
    async with on(database, clock, settings=Settings(run_worker=False)) as engine:
        ids = [(await engine.create_chat()).id for _ in range(230)]
    async with on(database, clock, settings=Settings(archive_after=DAY, delete_after=DAY)) as engine:
        await passes(clock, engine, DAY)
        assert all([(await engine.get_chat(chat_id)).archived for chat_id in ids])
        await passes(clock, engine, DAY)
        assert await engine.chat_ids() == []


@pytest.mark.parametrize("wrong_for", [0, 3599])
async def test_clock_set_forward_and_back_deletes_no_chat(database: Path, wrong_for: float) -> None:
    """Every worker then waits until an hour has passed evenly, and continues by itself."""
    clock = ManualClock()
    async with on(database, clock, settings=BOTH) as engine, on(database, clock, settings=BOTH) as other:
        resting, archived = [(await engine.create_chat()).id for _ in range(2)]
        await engine.archive(archived)
        clock.step(365 * DAY)
        for seconds in (0, wrong_for):
            await passes(clock, engine, seconds)
            await passes(clock, other, 0)
        clock.step(-365 * DAY)
        await passes(clock, engine, 30 * DAY - 1 - wrong_for)
        await passes(clock, other, 0)
        assert [(await engine.get_chat(one)).archived for one in (resting, archived)] == [False, True]
        await passes(clock, engine, 1)
        assert (await engine.get_chat(resting)).archived


# Pruning


KEPT = 240.0
SETTINGS = Settings(coalesce=0, keep_parts=KEPT)


class Pruning(Delegate):
    """A store that signals the end of each pass over all chats."""

    def __init__(self, store: ChatStore) -> None:
        super().__init__(store)
        self.calls: list[Pruned] = []
        self.over = anyio.Event()

    async def prune(self, **options: Any) -> Pruned:
        self.calls.append(await self._store.prune(**options))
        if self.calls[-1].after is None:
            self.over.set()
        return self.calls[-1]


async def pruned(engine: Engine, store: Pruning, clock: ManualClock, chat_id: str) -> list[Event]:
    """Age the parts, wait for a pass over all chats, and return the remaining parts."""
    clock.advance(KEPT)
    for _ in range(2):  # The first pass may have started while the parts were young.
        store.over = anyio.Event()
        while not store.over.is_set():
            await clock.advance(1)
    return await events_of(engine, chat_id)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(database: Any, clock: ManualClock) -> Pruning:
    return Pruning(stored_at(database, clock))


async def test_reader_resumes_to_the_same_transcript_after_pruning(
    open_engine: OpenEngine, strict_model: MakeModel, store: Pruning, clock: ManualClock
) -> None:
    """With a retry, a discarded attempt, tools, a client's turn, a compaction, an interrupt and an edit."""
    model = strict_model(rich_script(), context_limit=100)
    async with open_engine(model, store=store, settings=SETTINGS, tools=[look], clock=clock) as engine:
        chat_id = await rich_life(engine, clock)
        whole, transcript = await events_of(engine, chat_id), fold(await events_of(engine, chat_id))
        before = [await engine.get_chat(chat_id), await engine.messages(chat_id), await engine.export_audit(chat_id)]
        left = await pruned(engine, store, clock, chat_id)
        assert left == [event for event in whole if event.kind != "part"]
        assert len(left) < len(whole)
        for known in range(len(whole) + 1):
            rest = await events_of(engine, chat_id, after=known)
            assert fold(rest, fold(whole[:known])) == transcript
        expected = [await engine.get_chat(chat_id), await engine.messages(chat_id), await engine.export_audit(chat_id)]
        assert before == expected
        assert (await engine.explain(chat_id)).state is ChatState.waiting
        fork = await engine.fork(chat_id, at_version=(await engine.get_chat(chat_id)).version)
        assert contents(await engine.messages(fork.id)) == contents(await engine.messages(chat_id))
        erased = (await engine.messages(chat_id))[-1].id
        await engine.erase_message(chat_id, erased)
        assert fold(await events_of(engine, chat_id)).messages == await engine.messages(chat_id)
        assert verify_export(await engine.export_audit(chat_id)).ok
