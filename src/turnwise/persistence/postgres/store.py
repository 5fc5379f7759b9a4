"""The store of many machines: chats in a PostgreSQL database that every worker shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

import anyio
from pydantic import Field

from turnwise.logger import logger
from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.blobs.protocol import Blob
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.commit import Held
from turnwise.persistence.forks import children_among, forks_among, naming
from turnwise.persistence.integrity.passed_over import PassedOver
from turnwise.persistence.integrity.raw_chat import Rows
from turnwise.persistence.postgres import held_files, raw_rows
from turnwise.persistence.postgres import queries as reading
from turnwise.persistence.postgres.chat_rows import rows_of_chat
from turnwise.persistence.postgres.files import PostgresFiles
from turnwise.persistence.postgres.group_commit import GroupCommit, Unanswered
from turnwise.persistence.postgres.liveness import Liveness
from turnwise.persistence.postgres.migrate import check_migrated, migrate
from turnwise.persistence.postgres.notifications import Notices
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.pruning import prune
from turnwise.persistence.postgres.timeouts import CLOSE_S
from turnwise.persistence.postgres.tombstones import check_not_deleted, stored_tombstone
from turnwise.persistence.postgres.transactions import Transactions
from turnwise.persistence.protocol import (
    ChatStore,
    Committed,
    EventPage,
    Expiry,
    Overdue,
    Permission,
    Plan,
    Pruned,
    Runs,
    Snapshot,
    Waiting,
)
from turnwise.persistence.sql.migrations import UNCHANGED, migrations
from turnwise.persistence.store_url import check_password, without_password
from turnwise.persistence.stored_chat import IntegrityIssue, PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.errors import InvalidArgument, SettingsError
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import Answerer, ChatState
from turnwise.states.values.checked import checked
from turnwise.states.values.plain import shown
from turnwise.states.writes import RecordReceipt, RecordUsage

_T = TypeVar("_T")
_ADDRESSES: Final = ("postgresql://", "postgres://")
_SCHEMA: Final = "turnwise"
_OWN_OPTIONS: Final = ("schema", "listen", "direct_url")
_LONGEST_NAME: Final = 63
"""Bytes of a name in PostgreSQL."""
_Connections = Annotated[int, Field(ge=1, le=262_143)]
"""As many as a server can be told to accept."""
_Timeout = Annotated[float, Field(ge=0.001, le=2_147_483)]
"""Seconds; in PostgreSQL a timeout is a whole number of milliseconds, of 32 bits, and 0 is none."""
_BETWEEN_TRIES: Final = 3.0
"""Seconds between two tries to migrate: whoever has queued for a table behind the first goes on meanwhile."""
_CONFIRM: Final = "SELECT pg_logical_emit_message(true, 'turnwise', '')"
"""Writes to the server's log alone. Its commit waits, as any other, until a synchronous standby has all before it."""
_LOOSE: Final = "SELECT number, digest FROM loose_files ORDER BY number LIMIT $1"
_IS_LOOSE: Final = "SELECT NOT EXISTS (SELECT FROM chat_files WHERE digest = $1)"
_NAMING: Final = "SELECT chat_id, body FROM profiles WHERE position($1 IN body) > 0"


class PostgresStore(ChatStore):
    """Keeps chats in a schema of a PostgreSQL database, version 15 or later.

    The schema is named by the URL's `?schema=`, else it is `turnwise`; it is created if it is missing. Leases and
    deadlines count by the database's clock, unless a test hands in `now`, which returns UTC. The store needs asyncio.

    Args:
        url: `postgresql://user:password@host:port/database`, with the options that asyncpg knows.
        now: a clock in the place of the database's.
        pool_size: how many connections there are at most; one more listens for notices.
        statement_timeout: seconds after which the server gives up on a statement.
        poll_interval: seconds after which `watch` hints at "some chat", whatever notices came: one may have been lost.
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
    def __init__(  # noqa: PLR0913 - what a store can be told
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
        self._schema = own.schema
        self._now = now
        self._pool = Pool(
            url,
            size=pool_size,
            schema=self._schema,
            statement_timeout=statement_timeout,
            direct_url=direct_url,
            listens=listen,
        )
        self._liveness = Liveness(self._pool)
        self._notices = Notices(self._pool, self._liveness, poll_interval=poll_interval, listens=listen)
        self._prunings = PassedOver()
        self._transactions = Transactions(self._pool, now=now, tell=self._notices.tell)
        self._prompts = GroupCommit(self._pool, reading.prompts)
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
                await self._pool.run(lambda on: check_migrated(on, self._schema, migrations("postgres")))
        except BaseException:
            await self._pool.close()
            raise
        self._notices.open()
        self._is_open = True

    async def _migrate(self) -> None:
        while not await self._pool.write(lambda on: migrate(on, self._schema, migrations("postgres"))):
            logger.info("migration_awaited", schema=self._schema)
            await anyio.sleep(_BETWEEN_TRIES)  # who gives up waiting may do so here

    async def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        self._pool.end_calls_within(CLOSE_S)
        await self._transactions.close()
        await self._prompts.close()
        if was_open:
            await self._liveness.leave()
        await self._notices.close()
        await self._pool.close()

    # Changing

    async def create(
        self, chat_id: str, plan: Plan, *, parent: tuple[str, int] | None = None, unchanged: bool = False
    ) -> Committed:
        return await self._transactions.create(chat_id, plan, parent, unchanged=unchanged)

    async def change(self, chat_id: str, plan: Plan, *, shown: Sequence[PartEvent] = ()) -> Committed:
        return await self._transactions.change(chat_id, plan, shown)

    async def repair(self, chat_id: str, plan: Plan) -> Committed:
        return await self._transactions.repair(chat_id, plan)

    async def import_chat(self, chat: WholeChat, plan: Plan) -> Committed:
        return await self._transactions.import_chat(chat, plan)

    async def delete(self, chat_id: str, permit: Permission, *, actor: str) -> Tombstone:
        return await self._transactions.delete(chat_id, permit, actor)

    async def claim(self, plan: Plan, *, runs: Runs, limit: int) -> list[Committed]:
        return await self._transactions.claim(plan, runs, limit)

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        return await self._transactions.appender.add(chat_id, Held(token, worker, state), shown)

    async def renew(self, worker: str, seconds: float) -> Mapping[str, int]:
        return await self._transactions.renew(worker, seconds)

    async def check_writable(self) -> None:
        await self._pool.write(lambda on: on.execute(UNCHANGED))

    async def confirm(self) -> None:
        await self._pool.write(lambda on: on.execute(_CONFIRM))

    def end_calls_within(self, seconds: float) -> None:
        self._pool.end_calls_within(seconds)

    async def prune(self, *, keep: float, after: str, limit: int) -> Pruned:
        now = self._now() if self._now else None
        return await self._pool.write(
            lambda on: prune(on, self._prunings, now=now, keep=keep, after=after, limit=limit)
        )

    # Reading

    async def tombstone(self, chat_id: str) -> Tombstone | None:
        return await self._pool.run(lambda on: stored_tombstone(on, chat_id))

    async def deleted(self, chat_ids: Collection[str]) -> frozenset[str]:
        return await self._transactions.deleted(chat_ids)

    async def facts(self, chat_id: str) -> Facts:
        return await self._read_of(chat_id, lambda on: reading.facts(on, chat_id))

    async def rest(self, chat_id: str) -> PartialRead:
        return await self._read_of(chat_id, lambda on: reading.rest(on, chat_id))

    async def raw_rows(self, chat_id: str) -> Rows:
        return await self._pool.run(lambda on: raw_rows.rows_of(on, chat_id))

    async def chat_ids(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        return await self._pool.run(lambda on: raw_rows.chat_ids(on, after=after, limit=limit))

    async def orphans(self) -> list[IntegrityIssue]:
        return await self._pool.run(raw_rows.orphans)

    async def lease_expiry(self, chat_id: str) -> Expiry | None:
        now = self._now() if self._now else None
        return await self._read_of(chat_id, lambda on: reading.lease_expiry(on, chat_id, now=now))

    async def head(self, chat_id: str) -> tuple[int, str]:
        return await self._read_of(chat_id, lambda on: reading.head(on, chat_id))

    async def chats(
        self,
        *,
        owner: str | None,
        state: ChatState | None,
        limit: int,
        after: str | None,
        awaiting: Answerer | None = None,
    ) -> list[Facts | PartialRead]:
        return await self._pool.run(
            lambda on: reading.chats(on, owner=owner, state=state, awaiting=awaiting, limit=limit, after=after)
        )

    async def waiting_since(self) -> Waiting:
        now = self._now() if self._now else None
        return await self._pool.run(lambda on: reading.waiting_since(on, now=now))

    async def awaiting_subagents(self, *, after: str, limit: int) -> list[str]:
        return await self._pool.run(lambda on: reading.awaiting_subagents(on, after=after, limit=limit))

    async def ids(self, *, prefix: str, limit: int, owner: str | None = None) -> list[str]:
        return await self._pool.run(lambda on: reading.ids(on, prefix, limit, owner=owner))

    async def history(
        self, chat_id: str, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        return await self._read_of(
            chat_id, lambda on: reading.history(on, chat_id, at_version=at_version, after=after, size=size)
        )

    async def snapshot(self, chat_id: str, *, size: int | None = None) -> Snapshot:
        return await self._read_of(chat_id, lambda on: reading.snapshot(on, chat_id, size=size))

    async def prompt(self, chat_id: str) -> list[Message]:
        try:
            prompt = await self._prompts.add(chat_id)
        except Unanswered:
            (prompt,) = await self._read_of(chat_id, lambda on: reading.prompts(on, [chat_id]))
        if not prompt:
            await self._pool.run(lambda on: check_not_deleted(on, chat_id))
        return prompt

    async def cut_at(self, chat_id: str, message_id: str) -> tuple[Message, Cut] | None:
        return await self._read_of(chat_id, lambda on: reading.cut_at(on, chat_id, message_id))

    async def calls(self, chat_id: str, call_ids: Sequence[str]) -> dict[str, ToolCall]:
        return await self._read_of(chat_id, lambda on: reading.calls(on, chat_id, call_ids))

    async def receipt(self, chat_id: str, client_id: str) -> RecordReceipt | None:
        return await self._read_of(chat_id, lambda on: reading.receipt(on, chat_id, client_id))

    async def events(self, chat_id: str, *, after: int, limit: int) -> EventPage:
        return await self._read_of(chat_id, lambda on: reading.events(on, chat_id, after=after, limit=limit))

    async def shown(self, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
        return await self._read_of(chat_id, lambda on: reading.shown(on, chat_id, step, attempt))

    async def audit(self, chat_id: str) -> list[AuditRecord]:
        return await self._read_of(chat_id, lambda on: reading.audit(on, chat_id))

    async def forks(self, chat_id: str) -> list[str]:
        return forks_among(chat_id, await self._naming(chat_id))

    async def children(self, chat_id: str) -> list[str]:
        return children_among(chat_id, await self._naming(chat_id))

    async def _naming(self, parent: str) -> list[tuple[str, str]]:
        rows = await self._pool.run(lambda on: on.fetch(_NAMING, naming(parent)))
        return [(row["chat_id"], row["body"]) for row in rows]

    async def scrub(self) -> bool:
        """Do nothing and return false: the server removes old rows by VACUUM and recycles its log when it sees fit."""
        return False

    async def rows(self, chat_id: str) -> ChatRows:
        return await self._read_of(chat_id, lambda on: rows_of_chat(on, chat_id))

    async def ledger(self, chat_id: str) -> list[RecordUsage]:
        return await self._read_of(chat_id, lambda on: reading.ledger(on, chat_id))

    async def holders(self) -> frozenset[str]:
        return await self._pool.run(reading.holders)

    async def overdue(self, *, limit: int) -> Overdue:
        now = self._now() if self._now else None
        return await self._pool.run(lambda on: reading.overdue(on, now=now, limit=limit))

    async def rested(self, *, archived: bool, seconds: float, limit: int) -> list[str]:
        now = self._now() if self._now else None
        return await self._pool.run(
            lambda on: reading.rested(on, now=now, archived=archived, seconds=seconds, limit=limit)
        )

    # Files

    def file_store(self) -> PostgresFiles:
        return PostgresFiles(self._pool, self._now)

    async def files_kept_in(self) -> str | None:
        name: str | None = await self._pool.run(lambda on: on.fetchval(held_files.KEPT_IN))
        return name

    async def note_file(self, chat_id: str, blob: Blob, *, kept_in: str, arriving: bool = False) -> None:
        now = self._now() if self._now else None
        await self._pool.write(
            lambda on: held_files.note(on, chat_id, blob, kept_in=kept_in, now=now, arriving=arriving)
        )

    async def held_files(self, chat_id: str, digests: Collection[str] | None = None) -> Mapping[str, int]:
        return await self._pool.run(lambda on: held_files.held(on, chat_id, digests))

    async def let_go(self, *, seconds: float, limit: int, chat_id: str | None = None) -> int:
        now = self._now() if self._now else None
        return await self._pool.write(
            lambda on: held_files.let_unsent_go(on, now=now, seconds=seconds, limit=limit, chat_id=chat_id)
        )

    async def loose_files(self, *, limit: int) -> list[tuple[int, str]]:
        rows = await self._pool.run(lambda on: on.fetch(_LOOSE, limit))
        return [(row["number"], row["digest"]) for row in rows]

    async def is_loose(self, digest: str) -> bool:
        return await self._pool.run(lambda on: on.fetchval(_IS_LOOSE, digest))

    async def settle_loose(self, number: int) -> None:
        await self._pool.write(lambda on: on.execute("DELETE FROM loose_files WHERE number = $1", number))

    # Noticing

    def attend(self, worker: str) -> None:
        """Let the session of `watch` hold a lock for the worker."""
        self._liveness.attend(worker)

    async def gone(self, workers: Collection[str]) -> frozenset[str]:
        """Return those of the workers whose sessions have been gone for a while."""
        return await self._liveness.gone(workers)

    def watch(self) -> AsyncIterator[str | None]:
        """Yield the chats that other processes have changed; `None` after a reconnection and now and then."""
        return self._notices.hear()

    async def _read_of(self, chat_id: str, question: Callable[[Any], Awaitable[_T]]) -> _T:
        """Return the answer to a question about one chat.

        Raises:
            ChatUnreadable: a stored value is in the way.
            ChatDeleted: there is no answer, because the chat is gone.
        """

        async def answer(connection: Any) -> _T:
            value = await raw_rows.read_or_blamed(connection, chat_id, question)
            if not value:
                await check_not_deleted(connection, chat_id)
            return value

        return await self._pool.run(answer)


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
