"""Engines that crash in turn on one store: nothing is closed, released or logged."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import anyio

from support.life import NOW
from turnwise import Engine, Settings
from turnwise.engine.tools.declare import Tool
from turnwise.persistence.from_url import store_from_url
from turnwise.states.errors import StoreError
from turnwise.testing.clock import ManualClock


class MortalStore:
    """A store that delegates to another until its process is dead."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        if self.dead and name not in ("close", "watch"):
            raise StoreError("the process of this store is dead", passing=True)
        return getattr(self._store, name)


class MortalEngine(Engine):
    """An engine whose process can die without releasing anything."""

    _close_timeout = 0

    def die(self) -> None:
        self._worker = None


class Mortals:
    """Runs one engine at a time; the next one takes over the dead one's chats."""

    def __init__(
        self, url: str, model: Any, tools: Sequence[Tool] = (), *, store: type[MortalStore] = MortalStore
    ) -> None:
        self.url, self.model, self.tools, self._kind = url, model, tools, store
        self.clock = ManualClock(NOW)
        self.store: MortalStore
        self.engine: MortalEngine
        self._scope = anyio.CancelScope()
        self._down = anyio.Event()

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)

    async def start(self) -> MortalEngine:
        """Start an engine; leases of the previous one have expired by then."""
        settings = Settings(coalesce=0, lease=30, shutdown_grace=0)
        self.store = self._kind(store_from_url(self.url, durability="normal", now=self.clock.now))
        store: Any = self.store
        self.engine = MortalEngine(store, model=self.model, tools=list(self.tools), settings=settings, clock=self.clock)
        self._scope, self._down, up = anyio.CancelScope(), anyio.Event(), anyio.Event()
        self._tasks.start_soon(self._live, self.engine, self._scope, up, self._down)
        await up.wait()
        await self.clock.advance(31)
        return self.engine

    async def _live(self, engine: Engine, scope: anyio.CancelScope, up: anyio.Event, down: anyio.Event) -> None:
        try:
            with scope:
                async with engine:
                    up.set()
                    await anyio.sleep_forever()
        finally:
            down.set()

    async def kill(self) -> None:
        self.store.dead = True
        self.engine.die()
        self._scope.cancel()
        await self._down.wait()
