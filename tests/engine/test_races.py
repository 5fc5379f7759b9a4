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

ALONE = Settings(run_worker=False, coalesce=0)
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


async def two_turns(engine: Engine) -> tuple[str, list[str]]:
    """Return a chat of two turns, and the ids of its messages."""
    chat = await engine.create_chat(client_tools=[ASK])
    for word in ("one", "two"):
        await engine.ask(chat.id, word)
    return chat.id, [message.id for message in await engine.messages(chat.id)]


async def test_edit_of_message_cut_meanwhile_is_not_found(
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


async def test_edit_sees_boundary_set_meanwhile(open_engine: OpenEngine, strict_model: Any, database: Any) -> None:
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


async def test_erasure_finds_message_taken_from_queue(
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
