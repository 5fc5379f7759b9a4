"""Wraps a store that others wrote, so that whatever it raises reaches the engine as a `StoreError`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from turnwise.engine.user_code import UserCodeError, described, is_the_programs, was_cancelled
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import StoreError, TurnwiseError


def guarded_store(store: ChatStore) -> ChatStore:
    """Return the store, wrapped so that it raises only `TurnwiseError`s."""
    return cast("ChatStore", _GuardedStore(store))


class _GuardedStore:
    def __init__(self, store: ChatStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found
        if name == "watch":
            return functools.partial(_watch, found)
        return functools.partial(_call, name, found)


def _call(name: str, method: Callable[..., Any], *given: Any, **options: Any) -> Any:
    with _only_store_errors(name):
        answer = method(*given, **options)
    return _awaited(name, answer) if inspect.isawaitable(answer) else answer


async def _awaited(name: str, answer: Awaitable[Any]) -> Any:
    with _only_store_errors(name):
        return await answer


async def _watch(method: Callable[[], AsyncIterator[str | None]]) -> AsyncIterator[str | None]:
    hints = method()
    while True:
        with _only_store_errors("watch"):
            try:
                hint = await anext(hints)
            except StopAsyncIteration:
                return
        yield hint


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
        raise StoreError(f"the store failed in `{name}`, and whether it wrote is not known: {text}") from error
