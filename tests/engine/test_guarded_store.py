"""A store that others wrote raises what a client can understand, and nothing else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from turnwise import ChatNotFound, SettingsError, StoreError
from turnwise.engine.guarded_store import guarded_store, owned

ODD = (RuntimeError("planted"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit())
"""What a store may raise by mistake: nobody was told to end, and no signal came."""
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

    async def break_off(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("planted")

    def strike(self) -> None:
        signal.raise_signal(signal.SIGINT)

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
async def test_whatever_else_a_store_raises_is_a_store_error_that_names_it(way: str, error: BaseException) -> None:
    with pytest.raises(StoreError) as raised:
        await use(guarded_store(Raising(error)), way)  # type: ignore[arg-type]
    assert f"`{way}`" in str(raised.value)
    assert type(error).__name__ in str(raised.value)
    assert str(error) in str(raised.value)
    assert raised.value.__cause__ is error


async def test_what_a_store_raises_as_it_is_cancelled_is_a_store_error_too() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(StoreError, match="`break_off`"):
            await guarded_store(Raising(None)).break_off()  # type: ignore[arg-type,attr-defined]


@pytest.mark.parametrize("way", ["attend", "facts", "watch"])
@pytest.mark.parametrize("error", ITS_OWN, ids=lambda error: type(error).__name__)
async def test_what_a_store_may_raise_comes_as_it_is(way: str, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await use(guarded_store(Raising(error)), way)  # type: ignore[arg-type]
    assert raised.value is error


async def test_what_a_store_answers_and_has_comes_as_it_is() -> None:
    store: Any = guarded_store(Raising(None))  # type: ignore[arg-type]
    assert await use(store, "attend") == "w attends"
    assert await use(store, "facts") == "3 of c"
    assert await use(store, "watch") == ["c1", None]
    assert store.title == "no method"
    with pytest.raises(AttributeError):
        _ = store.nothing


async def test_who_is_told_to_end_while_a_store_works_ends_without_an_error() -> None:
    store: Any = guarded_store(Raising(None))  # type: ignore[arg-type]
    task = asyncio.create_task(store.wait())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_ctrl_c_while_a_store_works_ends_the_program() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            guarded_store(Raising(None)).strike()  # type: ignore[arg-type, attr-defined]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_store_that_was_left_behind_in_a_closed_loop_is_free_and_taken_from_nobody_later() -> None:
    """Its engine ended with the loop, which was not let end its tasks."""
    store: Any = Raising(None)
    left_behind = owned(guarded_store(store))

    async def take() -> None:
        left_behind.__enter__()

    async def take_again() -> None:
        with owned(guarded_store(store)):
            left_behind.__exit__(None, None, None)
            with pytest.raises(SettingsError, match="another engine"), owned(guarded_store(store)):
                pass

    loop = asyncio.new_event_loop()
    loop.run_until_complete(take())
    loop.close()
    asyncio.run(take_again())
