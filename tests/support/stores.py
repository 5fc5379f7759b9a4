"""Stores for tests: on a file, and with overridable methods."""

from collections.abc import AsyncIterator
from typing import Any

import anyio

from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.testing.clock import ManualClock


class Delegate:
    """A store that delegates to another, for tests that override methods."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Unwatched(Delegate):
    """A store whose notifications are all lost."""

    async def watch(self) -> AsyncIterator[str | None]:
        await anyio.sleep_forever()
        yield None


class Stuck(SQLiteStore):
    """A store whose migration by another process never ends."""

    def __init__(self) -> None:
        super().__init__(None)
        self.waits = anyio.Event()

    async def open(self) -> None:
        self.waits.set()
        await anyio.sleep_forever()


def stored_at(path: Any, clock: ManualClock | None = None) -> SQLiteStore:
    """Return a store on a file, with the clock if given."""
    return SQLiteStore(path, now=clock.now) if clock is not None else SQLiteStore(path)
