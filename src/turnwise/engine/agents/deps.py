"""Deps: the dependencies of an application's tools, opened for a chat while a worker holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Final

import anyio

from turnwise.engine.config.results import Chat
from turnwise.engine.isolation.clock import Clock, calling_after
from turnwise.engine.isolation.user_code import UserCall, UserCalls
from turnwise.engine.tools.signatures import find_called
from turnwise.foreign import guarded
from turnwise.logger import logger
from turnwise.states.errors import SettingsError

DepsOf = Callable[[Chat], AbstractAsyncContextManager[Any]]
"""Makes the deps of a chat for the tools of its `agent`. The chat is as it stood when one of them first ran."""

CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds that deps get to close once the worker releases the chat."""


def check_deps(declared: object) -> None:
    """Refuse a coroutine function or generator, whose decorator was forgotten."""
    if not callable(declared) or isinstance(declared, type):
        return
    called = find_called(declared)
    if iscoroutinefunction(called) or isasyncgenfunction(called) or isgeneratorfunction(called):
        raise SettingsError(
            "deps", "a function must return an async context manager: decorate it with `contextlib.asynccontextmanager`"
        )


class DepsFailed(Exception):
    """The deps of a chat could not be opened; the cause says why."""


class HeldDeps:
    """The deps of one chat while a worker holds it: opened at first use, and again for the tools of another agent."""

    def __init__(self, declared: object, calls: UserCalls, clock: Clock) -> None:
        self._declared = declared
        self._calls = calls
        self._clock = clock
        self._opened: _OpenDeps | None = None

    @property
    def open_for(self) -> str | None:
        """The agent whose tools they are open for; `None` if nothing is open."""
        opened = self._opened
        return opened.chat.agent if opened is not None and opened.are_open else None

    async def value(self, chat: Chat, limit: float | None) -> Any:
        """Return the deps for the tools of the chat's agent.

        Raises:
            DepsFailed: they cannot be opened, or not within so many seconds.
        """
        if not callable(self._declared):
            return self._declared
        if self._opened is not None and self._opened.chat.agent != chat.agent:
            await self.close()
        if self._opened is None:
            self._opened = _OpenDeps(self._declared, chat, self._calls)
        call = self._opened.call

        def expire() -> None:
            call.fail(TimeoutError(f"they were not open within {limit:g} s"))
            call.abandon()

        try:
            with calling_after(self._clock, limit, expire):
                return await call.outcome()
        except Exception as error:
            raise DepsFailed from error

    async def close(self) -> None:
        """Close them, if they were opened. Deps that take too long, or are still opening, are cancelled."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()


class _OpenDeps:
    def __init__(self, make: DepsOf, chat: Chat, calls: UserCalls) -> None:
        self.chat = chat
        self._make = make
        self.are_open = False
        self._leaving = asyncio.Event()
        self.call: UserCall[Any] = calls.start(self._stay, "deps", chat_id=chat.id)

    async def close(self) -> None:
        self._leaving.set()
        with anyio.move_on_after(CLOSE_TIMEOUT_S if self.are_open else 0, shield=True):
            await asyncio.wait([self.call.task])
        if self.are_open and not self.call.task.done():
            self.call.log("deps_not_closed_in_time")
        self.call.abandon()

    async def _stay(self) -> None:
        try:
            with guarded():
                async with self._make(self.chat) as deps:
                    self.are_open = True
                    self.call.give(deps)
                    await self._leaving.wait()
        except Exception as error:
            if not self.are_open or self.call.abandoned:
                raise
            logger.exception("deps_not_closed", error=error, **self.call.about)
