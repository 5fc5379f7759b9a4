"""Wraps a store that others wrote, so that whatever it raises reaches the engine as a `StoreError`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
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
    try:
        answer = method(*given, **options)
    except BaseException as error:
        _raise_store_error(name, error)
        raise
    return _awaited(name, answer) if inspect.isawaitable(answer) else answer


async def _awaited(name: str, answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except BaseException as error:
        _raise_store_error(name, error)
        raise


async def _watch(method: Callable[[], AsyncIterator[str | None]]) -> AsyncIterator[str | None]:
    hints = method()
    while True:
        try:
            hint = await anext(hints)
        except StopAsyncIteration:
            return
        except BaseException as error:
            _raise_store_error("watch", error)
            raise
        yield hint


def _raise_store_error(name: str, error: BaseException) -> None:
    """Raise a `StoreError` in place of an error that no store may raise; return for any other."""
    its_own = not isinstance(error, Exception) and not was_cancelled() and not is_the_programs(error)
    if its_own or (isinstance(error, Exception) and not isinstance(error, TurnwiseError)):
        text = described(UserCodeError(error))
        raise StoreError(f"the store failed in `{name}`, and whether it wrote is not known: {text}") from error
