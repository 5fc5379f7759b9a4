"""What happens between reading a chat and changing it: a command that was overtaken looks again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.chats import lines_of
from support.engines import OpenEngine
from support.events import assert_told_right
from support.latches import Latch
from support.stores import Delegate, stored_at
from turnwise import ClientTool, Engine, MessageNotFound, Settings
from turnwise.providers.scripted import Reply
from turnwise.states.events import PartEvent

ALONE = Settings(run_worker=False, coalesce=0)
BRIEF = Settings(coalesce=0, shutdown_grace=0)
ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})


class Overtaken(Delegate):
    """A store on which something else happens just before the first change."""

    def __init__(self, database: Any, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(stored_at(database))
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    async def change(self, *args: Any, **options: Any) -> Any:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await self._store.change(*args, **options)


async def test_an_interrupt_keeps_what_an_attempt_has_shown_that_began_meanwhile(
    open_engine: OpenEngine, strict_model: Any, database: Any
) -> None:
    """A worker takes the chat, shows something and lets go, all while somebody is about to say stop."""
    latch = Latch()
    model = strict_model([Reply("Hello", chunks=["Hel", "lo"], delay=1)], sleep=latch.pass_through)
    async with open_engine(strict_model([]), settings=ALONE) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")

    async def begin() -> None:
        async with open_engine(model, settings=BRIEF) as worker:
            async for event in worker.events(chat.id):
                if isinstance(event, PartEvent):
                    return

    async with open_engine(strict_model([]), store=Overtaken(database, begin), settings=ALONE) as engine:
        stopped = await engine.interrupt(chat.id)
        assert (stopped.state, stopped.settled) == ("interrupted", True)
        assert lines_of(await engine.messages(chat.id)) == ["user: hi", "assistant: Hel"]
        assert (await engine.messages(chat.id))[-1].partial
        await assert_told_right(engine, chat.id)


async def test_an_interrupt_keeps_what_a_second_attempt_has_shown(
    open_engine: OpenEngine, strict_model: Any, database: Any
) -> None:
    """What was read belongs to an attempt that was taken back since."""
    latch = Latch()
    replies = [Reply("First", chunks=["Fir", "st"], delay=1), Reply("Second", chunks=["Sec", "ond"], delay=1)]
    model = strict_model(replies, sleep=latch.pass_through)

    async def show(attempt: int) -> None:
        async with open_engine(model, settings=BRIEF) as worker:
            async for event in worker.events(chat.id):
                if isinstance(event, PartEvent) and event.attempt == attempt:
                    return

    async with open_engine(strict_model([]), settings=ALONE) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
    await show(1)
    store = Overtaken(database, lambda: show(2))
    async with open_engine(strict_model([]), store=store, settings=ALONE) as engine:
        await engine.interrupt(chat.id)
        assert lines_of(await engine.messages(chat.id)) == ["user: hi", "assistant: Sec"]
        await assert_told_right(engine, chat.id)


async def two_turns(engine: Engine) -> tuple[str, list[str]]:
    """Return a chat of two turns, and the ids of its messages."""
    chat = await engine.create_chat(client_tools=[ASK])
    for word in ("one", "two"):
        await engine.ask(chat.id, word)
    return chat.id, [message.id for message in await engine.messages(chat.id)]


async def test_a_message_that_an_edit_has_cut_meanwhile_is_not_there_any_more(
    open_engine: OpenEngine, strict_model: Any, database: Any
) -> None:
    model = strict_model(lambda request: f"re {request.messages[-1].text}")
    async with open_engine(model) as engine:
        chat_id, (first, _, second, _) = await two_turns(engine)

        async def cut() -> None:
            await engine.edit_message(chat_id, first, "other")
            await engine.wait(chat_id)

        async with open_engine(model, store=Overtaken(database, cut), settings=ALONE) as slow:
            with pytest.raises(MessageNotFound):
                await slow.edit_message(chat_id, second, "late")
        assert lines_of(await engine.messages(chat_id)) == ["user: other", "assistant: re other"]


async def test_an_edit_sees_the_boundary_that_was_set_meanwhile(
    open_engine: OpenEngine, strict_model: Any, database: Any
) -> None:
    """What the model is given after it starts at the boundary: the edit counted without it."""
    model = strict_model(lambda request: f"re {request.messages[-1].text}")
    async with open_engine(model) as engine:
        chat_id, (_, _, second, _) = await two_turns(engine)

        async def turn_and_clear() -> None:
            await engine.ask(chat_id, "three")
            await engine.edit_message(chat_id, (await engine.messages(chat_id))[-2].id, "anew")
            await engine.wait(chat_id)

        async with open_engine(model, store=Overtaken(database, turn_and_clear), settings=ALONE) as slow:
            await slow.edit_message(chat_id, second, "late")
        await engine.wait(chat_id)
        assert lines_of(await engine.messages(chat_id)) == [
            *("user: one", "assistant: re one"),
            *("user: late", "assistant: re late"),
        ]
        await assert_told_right(engine, chat_id)


async def test_an_erasure_finds_a_queued_message_that_has_become_a_turn_meanwhile(
    open_engine: OpenEngine, strict_model: Any, database: Any
) -> None:
    latch = Latch()
    model = strict_model([Reply("first", first_delay=1), "second"], sleep=latch.pass_through)
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        queued = (await engine.send_message(chat.id, "my secret")).message_id

        async def take() -> None:
            latch.open()
            await engine.wait(chat.id)

        async with open_engine(model, store=Overtaken(database, take), settings=ALONE) as slow:
            await slow.erase_message(chat.id, queued)
        assert lines_of(await engine.messages(chat.id))[2:] == ["user: [erased]", "assistant: second"]
        assert "secret" not in str([event async for event in engine.events(chat.id, follow=False)])
