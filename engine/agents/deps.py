"""Deps: what a service's tools need beside their arguments, opened for a chat while a worker holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import anyio

from turnwise.engine.results import Chat
from turnwise.engine.user_code import UserCall, UserCalls

DepsOf = Callable[[Chat], AbstractAsyncContextManager[Any]]
"""Makes the deps of a chat. The chat is as it stood when a worker took it."""

PATIENCE: Final = 5.0
"""Seconds that deps get to close once the worker gives the chat back."""


class DepsFailed(Exception):
    """The deps of a chat could not be opened; the cause says why."""


class HeldDeps:
    """The deps of one chat while a worker holds it: opened when they are first needed, closed with the hold.

    Args:
        declared: the deps themselves, or what makes them.
        calls: run user code.
    """

    def __init__(self, declared: object, calls: UserCalls) -> None:
        self._declared = declared
        self._calls = calls
        self._opened: UserCall[Any] | None = None
        self._are_open = False
        self._leaving = asyncio.Event()

    async def value(self, chat: Chat) -> Any:
        """Return the deps.

        Raises:
            DepsFailed: they cannot be opened.
        """
        if not callable(self._declared):
            return self._declared
        make: DepsOf = self._declared
        if self._opened is None:
            self._opened = self._calls.start(lambda: self._stay(make, chat), "deps", chat_id=chat.id)
        try:
            return await self._opened.outcome()
        except Exception as error:
            raise DepsFailed from error

    async def close(self) -> None:
        """Close them, if they were opened. Deps that take too long, or are still opening, are cancelled."""
        if self._opened is None:
            return
        self._leaving.set()
        with anyio.move_on_after(PATIENCE if self._are_open else 0, shield=True):
            await asyncio.wait([self._opened.task])
        self._opened.abandon()

    async def _stay(self, make: DepsOf, chat: Chat) -> Any:
        async with make(chat) as deps:
            self._are_open = True
            if self._opened is not None:
                self._opened.give(deps)
            await self._leaving.wait()
        return deps
