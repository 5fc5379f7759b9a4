"""Fixtures of the engine's tests: a strict model, and engines that verify every chat when they close."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.engines import MakeModel, OpenChat, OpenEngine
from turnwise import Chat, Engine, verify_export
from turnwise.testing.strict import StrictModel


@pytest.fixture
def strict_model() -> Iterator[Callable[..., StrictModel]]:
    """Make models that check every request by a strict provider's rules."""
    models: list[StrictModel] = []

    def make(*args: Any, **options: Any) -> StrictModel:
        models.append(StrictModel(*args, **options))
        return models[-1]

    yield make
    assert [fault for model in models for fault in model.faults] == []


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def open_engine(database: Path) -> OpenEngine:
    @asynccontextmanager
    async def opened(model: Any, *, store: Any = f"sqlite:///{database}", **options: Any) -> AsyncIterator[Engine]:
        async with Engine(store, model=model, **options) as engine:
            yield engine
            await verify_every_chat(engine)

    return opened


@pytest.fixture
def open_chat(open_engine: OpenEngine, strict_model: MakeModel) -> OpenChat:
    """Open engines, each with one chat and a strict model of a script or the given model."""
    of_model = ("summary", "context_limit", "sleep", "name", "provider")
    of_chat = ("client_tools", "system", "owner", "metadata", "title", "parameters", "agent", "history", "active_tools")

    @asynccontextmanager
    async def opened(script: Any, **options: Any) -> AsyncIterator[tuple[Engine, Chat, Any]]:
        strictly = {name: options.pop(name) for name in of_model if name in options}
        model = script if hasattr(script, "stream") else strict_model(script, **strictly)
        described = {name: options.pop(name) for name in of_chat if name in options}
        async with open_engine(model, **options) as engine:
            yield engine, await engine.create_chat(**described), model

    return opened


async def verify_every_chat(engine: Engine) -> None:
    """Check each chat's audit log, in the store and as an export, and that event numbers have no gap."""
    after: str | None = None
    while True:
        page = await engine.list_chats(after=after)
        for chat in page.items:
            verdict = await engine.verify(chat.id)
            assert verdict.ok, verdict
            exported = verify_export(await engine.export_audit(chat.id))
            assert exported.ok, exported
        after = page.next
        if after is None:
            return
