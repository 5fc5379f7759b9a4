"""A store that others wrote raises what a client can understand, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from turnwise import ChatNotFound, StoreError
from turnwise.engine.guarded_store import guarded_store

ODD = (RuntimeError("planted"), SystemExit(3), asyncio.CancelledError())
"""What a store may raise by mistake, without a cancellation or a signal."""
ITS_OWN = (StoreError("out of reach"), ChatNotFound("c"))


class Raising:
    """What is called of it raises, at once or once it is awaited."""

    title = "no method"

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def attend(self, worker: str) -> str:
        self._raise()
        return f"{worker} attends"

    async def facts(self, chat_id: str, *, limit: int) -> str:
        await anyio.lowlevel.checkpoint()
        self._raise()
        return f"{limit} of {chat_id}"

    async def watch(self) -> AsyncIterator[str | None]:
        yield "c1"
        yield None
        self._raise()

    async def wait(self) -> None:
        await anyio.sleep_forever()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


async def use(store: Any, way: str) -> Any:
    """Use a store in one of the three ways in which it can be used."""
    if way == "attend":
        return store.attend("w")
    if way == "facts":
        return await store.facts("c", limit=3)
    return [hint async for hint in store.watch()]


@pytest.mark.parametrize("way", ["attend", "facts", "watch"])
@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_foreign_error_becomes_store_error(way: str, error: BaseException) -> None:
    with pytest.raises(StoreError) as raised:
        await use(guarded_store(Raising(error)), way)  # type: ignore[arg-type]
    assert f"`{way}`" in str(raised.value)
    assert type(error).__name__ in str(raised.value)
    assert str(error) in str(raised.value)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("way", ["attend", "facts", "watch"])
@pytest.mark.parametrize("error", ITS_OWN, ids=lambda error: type(error).__name__)
async def test_documented_errors_pass(way: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await use(guarded_store(Raising(error)), way)  # type: ignore[arg-type]
    assert raised.value is error


async def test_answers_and_attributes_pass() -> None:
    store: Any = guarded_store(Raising(None))  # type: ignore[arg-type]
    assert await use(store, "attend") == "w attends"
    assert await use(store, "facts") == "3 of c"
    assert await use(store, "watch") == ["c1", None]
    assert store.title == "no method"
    with pytest.raises(AttributeError):
        _ = store.nothing


async def test_cancellation_passes() -> None:
    store: Any = guarded_store(Raising(None))  # type: ignore[arg-type]
    task = asyncio.create_task(store.wait())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
