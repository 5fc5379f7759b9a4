"""The store of many machines: chats in a PostgreSQL database that every worker shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

import anyio
from pydantic import Field

from turnwise.logger import logger
from turnwise.persistence.postgres.database import prompts, stored_among
from turnwise.persistence.postgres.group_commit import NoResponse, StatementBatches
from turnwise.persistence.postgres.liveness import Liveness
from turnwise.persistence.postgres.migrate import check_migrated, migrate
from turnwise.persistence.postgres.notifications import Notifications
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.timeouts import CLOSE_S
from turnwise.persistence.postgres.transactions import PostgresTransactions
from turnwise.persistence.sql.migrations import UNCHANGED, migrations
from turnwise.persistence.sql.store import Work
from turnwise.persistence.sql.tombstones import check_not_deleted
from turnwise.persistence.store_url import check_password, without_password
from turnwise.persistence.stored_chat import facts_of
from turnwise.states.errors import ChatUnreadable, InvalidArgument, SettingsError
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.values.checked import checked
from turnwise.states.values.plain import shown

_T = TypeVar("_T")
_ADDRESSES: Final = ("postgresql://", "postgres://")
_SCHEMA: Final = "turnwise"
_OWN_OPTIONS: Final = ("schema", "listen", "direct_url")
_LONGEST_NAME: Final = 63
"""Bytes of a name in PostgreSQL."""
_Connections = Annotated[int, Field(ge=1, le=262_143)]
"""As many as a server can be configured to accept."""
_Timeout = Annotated[float, Field(ge=0.001, le=2_147_483)]
"""Seconds; in PostgreSQL a timeout is a whole number of milliseconds, of 32 bits, and 0 is none."""
_BETWEEN_TRIES: Final = 3.0
"""Seconds between two tries to migrate: statements that queue for a table behind the first go on meanwhile."""
_CONFIRM: Final = "SELECT pg_logical_emit_message(true, 'turnwise', '')"
"""Writes to the server's log alone. Its commit waits, as any other, until a synchronous standby has all before it."""


class PostgresStore(PostgresTransactions):
    """Keeps chats in a schema of a PostgreSQL database, version 15 or later.

    The schema is named by the URL's `?schema=`, else it is `turnwise`; it is created if it is missing. Leases and
    deadlines count by the database's clock, unless a test hands in `now`, which returns UTC. The store needs asyncio.

    Args:
        url: `postgresql://user:password@host:port/database`, with the options that asyncpg knows.
        now: a clock in the place of the database's.
        pool_size: how many connections there are at most; one more listens for notices.
        statement_timeout: seconds after which the server gives up on a statement.
        poll_interval: seconds after which `watch` yields "some chat" in any case: a notification may have been lost.
        listen: whether to listen to notices; without, every change of another process is found by polling. The URL
            says the same by `?listen=false`.
        direct_url: leads to the server itself where `url` leads to a pooler: the session that listens uses it. The URL
            says the same by `?direct_url=`.
        migrates: whether opening may make the tables, or bring them up to date; else a schema that needs it is refused.

    Raises:
        SettingsError: an argument is out of its range, the URL cannot be read, or its schema's name has more than 63
            bytes.
    """

    @checked
    def __init__(  # noqa: PLR0913 - the store's options
        self,
        url: str,
        *,
        now: Callable[[], datetime] | None = None,
        pool_size: _Connections = 10,
        statement_timeout: _Timeout = 30,
        poll_interval: _Timeout = 5,
        listen: bool | None = None,
        direct_url: str | None = None,
        migrates: bool = True,
    ) -> None:
        url, own = _split_options("url", url)
        direct_url = own.direct_url if direct_url is None else direct_url
        if direct_url is not None:
            direct_url, _ = _split_options("direct_url", direct_url)
        listen = own.listen if listen is None else listen
        pool = Pool(
            url,
            size=pool_size,
            schema=own.schema,
            statement_timeout=statement_timeout,
            direct_url=direct_url,
            listens=listen,
        )
        self._schema = own.schema
        self._liveness = Liveness(pool)
        self._notifications = Notifications(pool, self._liveness, poll_interval=poll_interval, listens=listen)
        super().__init__(pool, now=now, notify=self._notifications.notify)
        self._prompts = StatementBatches(self._pool, prompts, reads=True)
        self._facts = StatementBatches(self._pool, stored_among, reads=True)
        self._migrates = migrates
        self._is_open = False

    async def open(self) -> None:
        if self._is_open:
            return
        await self._pool.open()
        try:
            if self._migrates:
                await self._migrate()
            else:
                await self._pool.run(lambda db: check_migrated(db, self._schema, migrations("postgres")))
        except BaseException:
            await self._pool.close()
            raise
        self._notifications.open()
        self._is_open = True

    async def _migrate(self) -> None:
        while not await self._pool.write(lambda db: migrate(db, self._schema, migrations("postgres"))):
            logger.info("migration_awaited", schema=self._schema)
            await anyio.sleep(_BETWEEN_TRIES)  # who gives up waiting may do so here

    async def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        self._pool.end_calls_within(CLOSE_S)
        await self._settle()
        await self._prompts.close()
        await self._facts.close()
        if was_open:
            await self._liveness.leave()
        await self._notifications.close()
        await self._pool.close()

    async def check_writable(self) -> None:
        await self._pool.write(lambda db: db.execute(UNCHANGED))

    async def confirm(self) -> None:
        await self._pool.write(lambda db: db.execute(_CONFIRM))

    def end_calls_within(self, seconds: float) -> None:
        self._pool.end_calls_within(seconds)

    async def facts(self, chat_id: str) -> Facts:
        try:
            stored = await self._facts.add(chat_id)
            if stored is not None:
                return facts_of(stored)
        except (NoResponse, ChatUnreadable):
            pass  # asked alone, it is read again, or the error names the place
        return await super().facts(chat_id)

    async def prompt(self, chat_id: str) -> list[Message]:
        try:
            prompt = await self._prompts.add(chat_id)
        except NoResponse:
            return await super().prompt(chat_id)
        if not prompt:
            await self._read(lambda db: check_not_deleted(db, chat_id))
        return prompt

    async def scrub(self) -> bool:
        """Do nothing and return false: the server removes old rows by VACUUM and recycles its log when it sees fit."""
        return False

    async def _read(self, question: Work[_T]) -> _T:
        return await self._pool.run(lambda db: question(self._clock.database(db)))

    async def _write(self, work: Work[_T]) -> _T:
        async def within(connection: Any) -> _T:
            async with connection.transaction():
                return await work(self._clock.database(connection))

        return await self._pool.write(within)

    # Noticing

    def attend(self, worker: str) -> None:
        """Let the session of `watch` hold a lock for the worker."""
        self._liveness.attend(worker)

    async def gone(self, workers: Collection[str]) -> frozenset[str]:
        """Return those of the workers whose sessions have been gone for a while."""
        return await self._liveness.gone(workers)

    def watch(self) -> AsyncIterator[str | None]:
        """Yield the chats that other processes have changed; `None` after a reconnection and now and then."""
        return self._notifications.listen()


class _Options(NamedTuple):
    """What a URL says to turnwise, and not to asyncpg."""

    schema: str
    listen: bool
    direct_url: str | None


def _split_options(argument: str, url: str) -> tuple[str, _Options]:
    """Return the URL without the options that are turnwise's own, and those.

    Raises:
        InvalidArgument: it is no URL of PostgreSQL.
        SettingsError: it cannot be read, or an option is wrong; PostgreSQL would cut the schema's name short, perhaps
            to that of another.
    """
    if not url.startswith(_ADDRESSES):
        problem = f"must be like postgresql://user:password@host/database; it was {shown(without_password(url))}"
        raise InvalidArgument(argument, problem)
    check_password(url)
    address, _, query = url.partition("?")
    options = parse_qsl(query)
    named = dict(options)
    others = urlencode([(name, value) for name, value in options if name not in _OWN_OPTIONS])
    schema, listen = named.get("schema", _SCHEMA), named.get("listen", "true")
    if len(schema.encode()) > _LONGEST_NAME:
        raise SettingsError(
            "store", f"the name of the schema {schema!r} is too long; it may have {_LONGEST_NAME} bytes in UTF-8"
        )
    if listen not in ("true", "false"):
        raise SettingsError("store", f"the URL's option `listen` must be true or false; it was {listen!a:.80}")
    return f"{address}?{others}" if others else address, _Options(schema, listen == "true", named.get("direct_url"))
