"""Wraps a store that others wrote, of chats or files: whatever it raises reaches the engine as a `StoreError`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from turnwise.engine.user_code import UserCodeError, described, is_the_programs, was_cancelled
from turnwise.persistence.files.protocol import FileStore
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import StoreError, TurnwiseError

T = TypeVar("T")
_GENERATORS: Final = ("watch", "read")


def guarded_files(files: FileStore) -> FileStore:
    """Return the file store, wrapped so that it raises only `TurnwiseError`s."""
    return cast("FileStore", _GuardedStore(files))


def guarded_store(store: ChatStore) -> ChatStore:
    """Return the store, wrapped so that it raises only `TurnwiseError`s."""
    return cast("ChatStore", _GuardedStore(store))


class _GuardedStore:
    def __init__(self, store: ChatStore | FileStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if not callable(attribute):
            return attribute
        if name in _GENERATORS:
            return functools.partial(_yielded, name, attribute)
        return functools.partial(_call, name, attribute)


def _call(name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with _only_store_errors(name):
        answer = method(*args, **options)
    return _awaited(name, answer) if inspect.isawaitable(answer) else answer


async def _awaited(name: str, answer: Awaitable[Any]) -> Any:
    with _only_store_errors(name):
        return await answer


async def _yielded(name: str, method: Callable[..., AsyncIterator[T]], *args: Any) -> AsyncIterator[T]:
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
    """Raise a `StoreError` in place of an error that no store may raise."""
    try:
        yield
    except TurnwiseError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and (was_cancelled() or is_the_programs(error)):
            raise
        text = described(UserCodeError(error))
        problem = f"the store failed in `{name}`, and whether it wrote is not known: {text}"
        raise StoreError(problem, written="unknown") from error
