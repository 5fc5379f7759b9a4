"""Wraps a user's store of chats or files: its errors become `StoreError`s, and one engine at a time may open it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from turnwise.engine.isolation.user_code import is_the_engines
from turnwise.foreign import described
from turnwise.persistence.blobs.protocol import FileStore
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import SettingsError, StoreError, TurnwiseError

T = TypeVar("T")
_GENERATORS: Final = ("watch", "read")
_OWNED: Final = dict[int, tuple[ChatStore | FileStore, asyncio.AbstractEventLoop]]()
"""The stores that engines of this process have open, by identity, each with the event loop of its engine."""


def guarded_files(files: FileStore) -> FileStore:
    """Return the file store, wrapped so that it raises only `TurnwiseError`s."""
    return cast("FileStore", _GuardedStore(files))


def guarded_store(store: ChatStore) -> ChatStore:
    """Return the store, wrapped so that it raises only `TurnwiseError`s."""
    return cast("ChatStore", _GuardedStore(store))


@contextmanager
def claim_store(store: ChatStore) -> Iterator[None]:
    """Refuse a store that another engine of this process has open.

    A store does not notify its own process of its changes, so two engines on one would miss each other's; and the
    first to be left would close it for both.
    """
    given = store._store if isinstance(store, _GuardedStore) else store  # noqa: SLF001 - each engine wraps it anew
    key, loop = id(given), asyncio.get_running_loop()
    if key in _OWNED and not _OWNED[key][1].is_closed():  # the engine of a closed loop has ended
        problem = "is open in another engine of this process; give each engine one of its own, on the same database"
        raise SettingsError("store", problem)
    _OWNED[key] = mine = given, loop
    try:
        yield
    finally:
        if _OWNED.get(key) is mine:
            del _OWNED[key]


class _GuardedStore:
    def __init__(self, store: ChatStore | FileStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if not callable(attribute):
            return attribute
        if name in _GENERATORS:
            return functools.partial(_iterate_guarded, name, attribute)
        return functools.partial(_call, name, attribute)


def _call(name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with _only_store_errors(name):
        answer = method(*args, **options)
    return _await_guarded(name, answer) if inspect.isawaitable(answer) else answer


async def _await_guarded(name: str, answer: Awaitable[Any]) -> Any:
    with _only_store_errors(name):
        return await answer


async def _iterate_guarded(name: str, method: Callable[..., AsyncIterator[T]], *args: Any) -> AsyncIterator[T]:
    with _only_store_errors(name):
        items = method(*args)
    while True:
        with _only_store_errors(name):
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
        yield item


@contextmanager
def _only_store_errors(name: str) -> Iterator[None]:
    try:
        yield
    except TurnwiseError:
        raise
    except BaseException as error:
        if is_the_engines(error):
            raise
        text = described(error)
        problem = f"the store failed in `{name}`, and whether it wrote is not known: {text}"
        raise StoreError(problem, written="unknown") from error
