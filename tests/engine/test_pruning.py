"""Pruning: deltas of replies that are over go after a while, and nobody who reads events notices more than gaps."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.engine.chats import said

from support.engines import MakeModel, OpenEngine
from support.eventful_life import look, rich_life, rich_script
from support.events import events_of, shown
from support.stores import Delegate, stored_at
from turnwise import ChatState, Engine, Event, Settings, SettingsError, fold, verify_export
from turnwise.persistence.protocol import ChatStore, Pruned
from turnwise.providers.scripted import Reply
from turnwise.testing.clock import ManualClock

KEPT = 240.0
SETTINGS = Settings(coalesce=0, keep_parts=KEPT)


class Pruning(Delegate):
    """A store that tells when a look at all chats is over."""

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
    """Let the parts grow old, wait until the worker has looked at all chats, and return what is left."""
    clock.advance(KEPT)
    for _ in range(2):  # The first look that ends may have begun while the parts were young.
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
    """Through a retry, a discarded attempt, tools, a client's turn, a compaction, an interrupt and an edit."""
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
        assert before == [
            await engine.get_chat(chat_id),
            await engine.messages(chat_id),
            await engine.export_audit(chat_id),
        ]
        assert (await engine.explain(chat_id)).state is ChatState.waiting
        fork = await engine.fork(chat_id, at_version=(await engine.get_chat(chat_id)).version)
        assert said(await engine.messages(fork.id)) == said(await engine.messages(chat_id))
        erased = (await engine.messages(chat_id))[-1].id
        await engine.erase_message(chat_id, erased)
        assert fold(await events_of(engine, chat_id)).messages == await engine.messages(chat_id)
        assert verify_export(await engine.export_audit(chat_id)).ok


async def test_parts_of_a_running_reply_are_not_pruned(
    open_engine: OpenEngine, strict_model: MakeModel, store: Pruning, clock: ManualClock
) -> None:
    """A reader that joins sees it, and an interrupt makes a message of it."""
    settings = Settings(coalesce=0, keep_parts=KEPT, idle_timeout=None)
    model = strict_model(Reply("Hello", chunks=["Hel", "lo"], stall_after=1))
    async with open_engine(model, store=store, settings=settings, clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await shown(engine, chat.id, "Hel")
        assert fold(await pruned(engine, store, clock, chat.id)).live_text == "Hel"
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        assert said(await engine.messages(chat.id)) == [("user", "hello"), ("assistant", "Hel")]


@pytest.mark.parametrize("seconds", [0, -1, True, "a day"])
def test_invalid_keep_parts_is_refused(seconds: Any) -> None:
    with pytest.raises(SettingsError, match="keep_parts: must be a number"):
        Settings(keep_parts=seconds)
