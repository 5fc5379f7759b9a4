"""Empty databases, a new one for each run of a scenario."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.errors import InvalidArgument

Now = Callable[[], datetime]


class CrashDatabase(Protocol):
    """A database that outlives the processes that use it."""

    def store(self, now: Now) -> ChatStore:
        """Return a store on it, not opened yet: each process has one of its own."""
        ...


class Databases(Protocol):
    """Makes databases."""

    def fresh(self) -> CrashDatabase: ...


@asynccontextmanager
async def databases(store: str) -> AsyncIterator[Databases]:
    """Make databases as an address says: files in a folder of their own, or schemas of a PostgreSQL database.

    All of them are gone afterwards.

    Raises:
        InvalidArgument: no databases can be made there.
    """
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="turnwise-crash-") as folder:
            yield await _Files.made(Path(folder))
    elif store.startswith(("postgresql://", "postgres://")):
        schemas = _Schemas(store)
        try:
            yield schemas
        finally:
            await schemas.drop()
    else:
        raise InvalidArgument("store", f"must be 'sqlite' or the URL of a PostgreSQL database; it was {store!r}")


class _SQLiteFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def store(self, now: Now) -> ChatStore:
        return SQLiteStore(self._path, durability="normal", now=now)  # no power is cut


class _Files:
    """Files that are copies of one: to migrate a database takes longer than a scenario."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._serial = count(1)

    @classmethod
    async def made(cls, folder: Path) -> _Files:
        blank = SQLiteStore(folder / "blank.db")
        await blank.open()
        await blank.close()
        return cls(folder)

    def fresh(self) -> CrashDatabase:
        for old in self._folder.glob("run-*"):
            old.unlink()
        path = self._folder / f"run-{next(self._serial)}.db"
        shutil.copy(self._folder / "blank.db", path)
        return _SQLiteFile(path)


class _PostgresSchema:
    def __init__(self, url: str) -> None:
        self._url = url

    def store(self, now: Now) -> ChatStore:
        from turnwise.persistence.postgres.store import PostgresStore  # noqa: PLC0415 - asyncpg is an extra

        return PostgresStore(self._url, now=now, pool_size=4)


class _Schemas:
    def __init__(self, url: str) -> None:
        if "schema=" in url:
            raise InvalidArgument("store", "must name no schema: each run of the scenario gets one of its own")
        self._url = url
        self._prefix = f"turnwise_crash_{uuid4().hex[:12]}"
        self._names: list[str] = []

    def fresh(self) -> CrashDatabase:
        self._names.append(f"{self._prefix}_{len(self._names) + 1}")
        return _PostgresSchema(f"{self._url}{'&' if '?' in self._url else '?'}schema={self._names[-1]}")

    async def drop(self) -> None:
        import asyncpg  # noqa: PLC0415 - asyncpg is an extra

        connection = await asyncpg.connect(self._url)
        try:
            for name in self._names:
                await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        finally:
            await connection.close()
