"""Stopping: who stops listening closes the provider's connection at once, so that nobody pays for what nobody hears."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import anyio
import pytest
from asking import asked
from dialects import DIALECTS, Connect, Dialect, Said
from server import Answer, Server

from turnwise import ChatState, Engine

AT_ONCE = 0.1
"""Seconds within which a connection must be closed."""


def _silent(dialect: Dialect, *, after_output: bool) -> Answer:
    return Answer(dialect.frames(Said())[: -dialect.finish_frames] if after_output else None, end="silence")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("after_output", [True, False], ids=["after output", "before output"])
async def test_cancelling_a_stream_closes_the_connection_at_once(
    dialect: Dialect, *, after_output: bool, server: Server, connect: Connect
) -> None:
    server.script = [_silent(dialect, after_output=after_output)]
    model = await connect(dialect)

    async def listen() -> None:
        async with aclosing(model.stream(asked("Greet the world."))) as stream:
            async for _ in stream:
                heard.set()

    heard = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        request = await server.request(1)
        if after_output:
            await heard.wait()
        cancelled_at = asyncio.get_running_loop().time()
        tasks.cancel_scope.cancel()
    await request.gone.wait()
    assert request.gone_at - cancelled_at < AT_ONCE


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_an_interrupt_closes_the_connection_at_once_and_keeps_what_was_shown(
    dialect: Dialect, server: Server, connect: Connect
) -> None:
    server.script = [_silent(dialect, after_output=True), Answer(dialect.frames(Said("And on.")))]
    async with Engine("sqlite://", model=await connect(dialect)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Greet the world.")
        request = await server.request(1)
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        stopped_at = asyncio.get_running_loop().time()
        await engine.interrupt(chat.id)
        await request.gone.wait()
        chat = await engine.wait(chat.id, timeout=5)
        assert request.gone_at - stopped_at < 2 * AT_ONCE
        assert (chat.state, chat.settled) == (ChatState.interrupted, True)
        assert [message.text for message in await engine.messages(chat.id)] == ["Greet the world.", "Hello world."]
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id, timeout=5)).state is ChatState.waiting
