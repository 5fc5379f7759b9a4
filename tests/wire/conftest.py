"""What the tests on the wire share: a server, and real SDKs that talk to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import pytest

from support.wire.dialects import Connect, Dialect
from support.wire.server import Server, serving
from turnwise.providers.pydantic_ai import PydanticAIModel


@pytest.fixture(autouse=True, scope="session")
def _sdks() -> None:
    """Import what the SDKs import at a first request: it takes longer than a test's timers."""
    for module in ("openai.resources.chat", "openai.resources.responses", "anthropic.resources.beta"):
        import_module(module)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, "a-test-key")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as running:
        yield running


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Connect]:
    """Make models of a dialect that ask the server, and close their connections in the end."""
    async with AsyncExitStack() as stack:

        async def connected(dialect: Dialect, **options: Any) -> PydanticAIModel:
            model = PydanticAIModel(dialect.model.format(url=server.url), **options)
            return await stack.enter_async_context(model)

        yield connected
