"""The parts of a reply are stored in small batches, then shown; the last batch comes with the end of the reply."""

from __future__ import annotations

from pathlib import Path

import anyio

from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of
from support.stores import HeldParts, stored_at
from turnwise.providers.scripted import Reply
from turnwise.testing.clock import ManualClock


async def test_a_reply_that_ends_waits_for_the_parts_that_are_being_stored(
    open_engine: OpenEngine, strict_model: MakeModel, database: Path
) -> None:
    """Else its end would overtake them, and they would be refused: whoever follows would miss words."""
    clock = ManualClock()
    store = HeldParts(stored_at(database, clock))
    ended = anyio.Event()

    async def until_it_is_stored(_seconds: float) -> None:
        await store.storing.wait()
        ended.set()

    model = strict_model([Reply("Hello", chunks=["Hel", "lo"], delay=1)], sleep=until_it_is_stored)
    async with open_engine(model, store=store, clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await ended.wait()
        await anyio.wait_all_tasks_blocked()
        assert (await engine.get_chat(chat.id)).state == "streaming"
        store.go_on.set()
        await engine.wait(chat.id)
        events = await events_of(engine, chat.id)
        kinds = [event.kind for event in events if event.kind in ("part", "turn_finished")]
        assert kinds == ["part", "part", "turn_finished"]
        assert "".join(event.part.delta or "" for event in events if event.kind == "part") == "Hello"
        await assert_told_right(engine, chat.id)
