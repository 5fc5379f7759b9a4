"""A database as both stores use it: statements by name, inside one transaction or one snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from turnwise.persistence.rows import PARSE_ERRORS
from turnwise.persistence.sql.statements import Dialect, Statement, statements_in, translated
from turnwise.persistence.stored_chat import Stored

_T = TypeVar("_T")

Row = Sequence[Any]
"""The columns of a row, in the order of its statement."""


class SQLDatabase(ABC):
    """A connection, and the clock that counts there. Parameters are times, lists and what else a column holds.

    Reads and writes that both stores share are coroutines over it. On SQLite none of them ever waits: there each runs
    from end to end in one step, on the thread of the connection.
    """

    dialect: ClassVar[Dialect]
    parts: ClassVar[str]
    """The table of the parts of replies under way."""
    remote: ClassVar[bool]
    """Whether its clock is another machine's."""
    refusals: ClassVar[tuple[type[Exception], ...]]
    """What it raises that is no fault of what is stored."""
    names: ClassVar[Mapping[str, str]]
    """Its own names of tables and columns, by those of `ChatRows`."""
    chat_row: ClassVar[str]
    """The query for all that `ChatRows.chat` holds of a chat."""
    event_rows: ClassVar[str]
    """The query for all events of a chat, in order."""

    async def fetch(self, name: str, /, **values: Any) -> Sequence[Row]:
        return await self._fetch(statements_in(self.dialect)[name], values)

    async def fetch_one(self, name: str, /, **values: Any) -> Row | None:
        rows = await self._fetch(statements_in(self.dialect)[name], values)
        return rows[0] if rows else None

    async def fetch_column(self, name: str, /, **values: Any) -> list[Any]:
        return [value for (value,) in await self.fetch(name, **values)]

    async def fetch_sql(self, sql: str, /, **values: Any) -> Sequence[Row]:
        """Return the rows of a statement that is put together from our own names of tables and columns."""
        return await self._fetch(translated(sql, self.dialect), values)

    async def execute(self, name: str, /, **values: Any) -> int:
        """Execute a statement; return how many rows it changed."""
        return await self._execute(statements_in(self.dialect)[name], values)

    async def execute_sql(self, sql: str, /, **values: Any) -> int:
        """Execute a statement that is put together from our own names; return how many rows it changed."""
        return await self._execute(translated(sql, self.dialect), values)

    async def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows, all of the same columns, into a table; they may name their chat by its id."""
        if rows:
            values = {name: f":{name}" for name in rows[0] if name != "chat_id"}
            if "chat_id" in rows[0]:
                values["chat"] = "{chat}"
            sql = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608 - names of our own
            await self._execute_many(translated(sql, self.dialect), rows)

    @abstractmethod
    async def fetch_page(self, name: str, /, *, size: float | None, **values: Any) -> tuple[Sequence[Row], bool]:
        """Return the first rows of a statement, and whether they have come to `size` bytes.

        The last row is the one that brings them to it; the statement's last column is the size.
        """

    @abstractmethod
    async def fetch_dicts(self, sql: str, /, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement of our own names, each as its columns by name."""

    @abstractmethod
    async def stored(self, rest: str, /, **values: Any) -> list[Stored]:
        """Return the stored values that say where chats stand; `rest` is the end of the query."""

    @abstractmethod
    async def now(self) -> datetime:
        """Return the time by the clock that counts."""

    @abstractmethod
    def time_in(self, value: Any) -> datetime:
        """Return a stored time, or raise `ValueError`: it is none; so are other errors of `PARSE_ERRORS`."""

    def time_or_none(self, value: Any) -> datetime | None:
        try:
            return self.time_in(value)
        except PARSE_ERRORS:
            return None

    @abstractmethod
    def within(self, filters: Sequence[str], before: str) -> str:
        """Return the condition that columns are those of the parameters of their names, and the number below another.

        It is spelled so that this database finds such chats by one index.
        """

    @abstractmethod
    def one_moment(self) -> AbstractAsyncContextManager[Any]:
        """Return a context in which all queries see the same moment of the database."""

    @abstractmethod
    async def compute(self, function: Callable[..., _T], *values: Any) -> _T:
        """Run a slow function without blocking other work, and return its result."""

    @abstractmethod
    async def _fetch(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]: ...

    @abstractmethod
    async def _execute(self, statement: Statement, values: Mapping[str, Any]) -> int: ...

    @abstractmethod
    async def _execute_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None: ...
