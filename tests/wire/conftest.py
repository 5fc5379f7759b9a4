"""Fixtures of the tests on the wire: a server, and real SDKs that talk to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.wire.dialects import DIALECTS, Connect, Dialect, PlainReply

from support.wire.server import Answer, Server, serving
from turnwise import Engine
from turnwise.providers.pydantic_ai import PydanticAIModel

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY")


@pytest.fixture(autouse=True, scope="session")
def _sdks() -> None:
    """Use each SDK once: its first request imports and builds for longer than a test's timers."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in KEYS:
            monkeypatch.setenv(name, "a-test-key")
        asyncio.run(_ask_each())


async def _ask_each() -> None:
    for dialect in DIALECTS:
        async with serving() as server:
            server.script = [Answer(dialect.frames(PlainReply()))]
            async with (
                PydanticAIModel(dialect.model.format(url=server.url)) as model,
                Engine("sqlite://", model=model) as engine,
            ):
                chat = await engine.create_chat()
                await engine.ask(chat.id, "Greet the world.")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "a-test-key")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as running:
        yield running


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Connect]:
    """Make models of a dialect on the server; close their connections in the end."""
    async with AsyncExitStack() as stack:

        async def connected(dialect: Dialect, **options: Any) -> PydanticAIModel:
            model = PydanticAIModel(dialect.model.format(url=server.url), **options)
            return await stack.enter_async_context(model)

        yield connected
