"""The log determines the stored rows: every column of every table is changed in turn, and the check names the place."""

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg
import pytest
from msgspec.structs import replace

from support.exploring import few
from support.rich_chat import engine_on, live
from turnwise import Engine, Settings, ToolResult
from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import hash_of, log_of, to_json
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.facts import Limits
from turnwise.states.messages import ScheduledMessage, TextPart
from turnwise.states.triggers import CallStarted, PromoteQueued, Schedule, SendMessage
from turnwise.states.values.digests import digest
from turnwise.testing.conformance import plans

HINTS = {
    "chats.number": "the other tables name the chat by it: without it they have no rows of the chat",
    "chats.expires": "renewed without a transition: the token is the fence",
    "chats.lasts": "the same: how long the last renewal asked for",
    "chats.rested": "retention finds chats by it",
    "facts.changed": "in PostgreSQL: as chats.changed",
    "chats.changed": "the number of the last commit among those of all chats: an import gives another",
    "events.changed": "the same",
    "changes": "the number that the last commit got: of the store, of no chat",
    "budgets": "what owners and chats may spend, and have spent: of the store",
    "consumers": "how far consumers are: of the store, of no chat",
    "undelivered": "what a consumer could not handle: of the consumer",
    "queue.rank": "the order is compared, the number is free",
    "partial_events": "work under way: pruned later, and a finished message says what it said",
    "quarantine": "what a repair found unreadable and put aside, so what the log does not say",
    "chat_files": "which files a chat holds; what its messages refer to is bound with them, and by its digest",
    "unreferenced_files": "files to be removed: of the store, of no chat",
    "file_store": "where files are kept: of the store, of no chat",
    "blobs": "files, each under the digest of its bytes: of the store, of no chat",
    "blob_pieces": "the same",
    "blob_remains": "what is left of uploads: of the store, of no chat",
    "worker_reports": "which workers there are: of the store, of no chat",
    "rates": "what principals may still send: of the store, of no chat",
    "workers": "who lives: of the store, of no chat",
    "tombstones": "what is left of deleted chats: of the store, of no chat",
    "turnwise_migrations": "of the store, of no chat",
}
"""Columns that no record covers. The guide of the audit log gives the reasons."""
HINTS_WHILE_HELD = {"chats.event_seq": "it counts parts as they come, and the last of them may be lost in a crash"}
"""Columns that no record covers in a chat that a worker holds."""

KEYS = {
    "messages": ["position"],
    "boundaries": ["position"],
    "calls": ["call_id"],
    "queue": ["id"],
    "receipts": ["client_id"],
    "usage": ["version", "number"],
    "audit": ["version"],
    "events": ["seq"],
}
"""By table, the columns that identify a row in its chat."""

FLAGS = {"chats.settled", "chats.archived", "messages.erased"}
OF_PARTS = {"events.step", "events.attempt"}
"""Columns that only parts use, and that are empty elsewhere."""

Rows = list[tuple[Any, ...]]
Ask = Callable[..., Awaitable[Rows]]
Check = Callable[[str], Awaitable[Verdict]]
Store = TypeVar("Store", SQLiteStore, PostgresStore)
AT_WORK = "at work"
"""A held chat with two open calls: it fills columns that are empty in a resting chat."""


def _others(value: Any, known: list[Any], *, flag: bool) -> list[Any]:
    """Return other values of the same type, as a forger would choose them, and null."""
    values = [] if value is None else [type(value)(1 - value)] if flag else [_other(value), _another(value)]
    found = [known_one for known_one in known if known_one not in (value, None)][:1]
    empty = {str: "[]" if str(value)[:1] == "[" else "", list: [], bytes: b""}.get(type(value))
    others = [*values, *found, *([empty] if empty is not None else []), None]
    return [other for number, other in enumerate(others) if other != value and other not in others[:number]]


def _other(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1000
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1, *value[1:]])
    if isinstance(value, list):
        return [*value, *value[-1:]]
    if isinstance(value, datetime):
        return value.replace(year=value.year + 1)
    if value[:1] in {"{", "["}:
        return _other_json(json.loads(value))
    return value[:-1] + ("1" if value[-1:] == "0" else "0")


def _other_json(found: Any) -> str:
    if isinstance(found, list):
        return json.dumps([*found, *found[-1:]])
    texts = [name for name, value in found.items() if isinstance(value, str) and not value[:4].isdigit()]
    name = (texts or [*found, None])[-1]
    changed = {} if name is None else {name: _other(found[name])}
    return json.dumps({**found, **changed}, separators=(",", ":"))


def _another(value: Any) -> Any:
    if isinstance(value, int):
        return value - 1
    if isinstance(value, datetime):
        return value - timedelta(microseconds=1)
    if isinstance(value, str) and value[:1] == "{":
        return json.dumps(dict([*json.loads(value).items()][1:]), separators=(",", ":"))
    return value[1:] if isinstance(value, str | bytes) and value[:1] != "[" else value


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class Cell:
    """One stored value: a column of one row."""

    def __init__(self, place: tuple[str, str], chat_id: str, key: dict[str, Any], value: Any) -> None:
        self.table, self.column = place
        self.chat_id = chat_id
        self.key = key
        self.value = value

    async def put(self, value: Any, ask: Ask) -> bool:
        """Change the cell; return `False` if the database refuses the value."""
        where = " AND ".join(f"{name} = ${number}" for number, name in enumerate(self.key, 2))
        sql = f"UPDATE {self.table} SET {self.column} = $1 WHERE {where}"  # noqa: S608 - names of our own
        try:
            await ask(sql, value, *self.key.values())
        except (sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError):
            return False
        if self.column in self.key:
            self.key[self.column] = value
        return True


async def _cells(place: tuple[str, str], ask: Ask, chat_ids: list[str]) -> tuple[list[Cell], list[Any]]:
    """Return cells of a column to change: a filled one of each chat, an empty one, and some others."""
    table, column = place
    chat_key = "id" if table == "chats" else "chat"
    ids = dict(await ask("SELECT number, id FROM chats"))
    names = [chat_key, *KEYS.get(table, ())]
    bound = " WHERE kind NOT IN ('part', 'tool_progress')" if table == "events" else ""
    rows = await ask(f"SELECT {', '.join(names)}, {column} FROM {table}{bound}")  # noqa: S608 - names of our own
    every = [Cell(place, ids.get(row[0], row[0]), dict(zip(names, row, strict=False)), row[-1]) for row in rows]
    known = [value for (value,) in await ask(f"SELECT DISTINCT {column} FROM {table}")]  # noqa: S608
    filled = [[cell for cell in every if cell.chat_id == chat and not _is_empty(cell.value)] for chat in chat_ids]
    empty = [cell for cell in every if _is_empty(cell.value)]
    return [cells[0] for cells in (*filled, empty) if cells], known


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", "[]", "{}", [])


async def _rewrite_everything(columns: Rows, ask: Ask, check: Check, chat_ids: list[str]) -> None:
    """Change every column that a record covers, assert that the check names it, and that one chat fills it."""
    unseen = []
    for table, column in columns:
        place = f"{table}.{column}"
        if table in HINTS or place in HINTS:
            continue
        cells, known = await _cells((table, column), ask, chat_ids)
        cells = [cell for cell in cells if place not in HINTS_WHILE_HELD or cell.chat_id != AT_WORK]
        taken = 0
        for number, cell in enumerate(cells):
            for other in _others(cell.value, known, flag=place in FLAGS)[: 1 if number else None]:
                before = cell.value
                if not await cell.put(other, ask):
                    continue
                taken += 1
                own = (table, column) == ("chats", "id")
                verdict = await check(other if own else cell.chat_id)
                change = f"{place} of {cell.chat_id} was rewritten from {before!r} to {other!r}"
                if verdict.ok or verdict.position is None:
                    unseen.append(f"{change}, and nobody saw it")
                elif table != "audit" and not own and not _names(verdict.place, table, column):
                    unseen.append(f"{change}, and the verdict is {verdict}")
                assert await cell.put(before, ask)
        if taken < (1 if place in FLAGS | OF_PARTS else 2):
            unseen.append(f"{place} has nothing to rewrite")
    assert not unseen, "\n".join(unseen)
    assert [await check(chat_id) for chat_id in chat_ids] == [Verdict(ok=True)] * len(chat_ids)


def _names(place: str | None, table: str, column: str) -> bool:
    """Return whether a place names the column, or the row if its key changed."""
    row, _, columns = (place or "").partition(".")
    names = [name.rpartition(".")[2] for name in columns.split("|")]
    return (row.partition("[")[0] == table or f"{table}." in columns) and (not columns or column in {"chat", *names})


async def _lived(store: Any) -> list[str]:
    """Run one life until it rests and one until it works, in an empty store; return the chats."""
    async with engine_on(store) as engine:
        at_rest = await live(engine)
    async with opened(store):  # without a worker, which would take the other one
        calls = plans.reply("I look", local=["a", "b"])
        start = plans.move(CallStarted(token=plans.HOLDER, call_id="a"))
        message = SendMessage(parts=(TextPart(text="hi"),), client_id="k", content_digest=digest("hi"))
        sent = plans.move(message, limits=Limits(context_limit=1000, capped_model="a:model"))
        later = ScheduledMessage(id="s", parts=(TextPart(text="wake up"),), due=datetime(2100, 1, 1, tzinfo=UTC))
        scheduled = plans.move(Schedule(message=later))
        await plans.created(store, AT_WORK, sent, plans.claim(), calls, start, plans.send("later"), scheduled)
    return [AT_WORK, at_rest]


@pytest.mark.deep
async def test_every_sqlite_column_is_covered(tmp_path: Path) -> None:
    """A new column fails this test until the log covers it, or the list of hints names it."""
    path = tmp_path / "chats.db"
    chat_ids = await _lived(SQLiteStore(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as on:
        on.execute("PRAGMA foreign_keys = OFF")

        async def ask(sql: str, *values: Any) -> Rows:
            named = {f"v{number}": value for number, value in enumerate(values, 1)}
            return on.execute(re.sub(r"\$(\d)", r":v\1", sql), named).fetchall()

        tables = await ask("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        columns = [
            (table, row[1]) for (table,) in tables for row in on.execute(f"PRAGMA table_info({table})").fetchall()
        ]
        async with opened(SQLiteStore(path)) as store:

            async def check(chat: str) -> Verdict:
                return verify_stored(chat, await store.rows(chat))

            await _rewrite_everything(columns, ask, check, chat_ids)


@pytest.mark.deep
async def test_every_postgresql_column_is_covered(postgres_url: str, beside: asyncpg.Connection) -> None:
    """The same on PostgreSQL."""
    chat_ids = await _lived(PostgresStore(postgres_url))

    async def ask(sql: str, *values: Any) -> Rows:
        return [tuple(row) for row in await beside.fetch(sql, *values)]

    columns = await ask(
        "SELECT table_name::text, column_name::text FROM information_schema.columns"
        " WHERE table_schema = current_schema()"
    )
    async with opened(PostgresStore(postgres_url)) as store:

        async def check(chat: str) -> Verdict:
            return verify_stored(chat, await store.rows(chat))

        await _rewrite_everything(columns, ask, check, chat_ids)


@pytest.mark.parametrize(("waiting", "promoted"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
async def test_queue_order_must_match_the_log(tmp_path: Path, waiting: int, promoted: int) -> None:
    """Any message at the head counts, and so does a random order."""
    path = tmp_path / "chats.db"
    async with opened(SQLiteStore(path)) as store:
        sent = [plans.send(f"later {number}") for number in range(waiting)]
        await plans.created(store, "chat", plans.send("hi"), plans.claim(), *sent)
        queue = [queued.id for queued in (await store.facts("chat")).queue]
        moved = queue.pop(promoted - 1)
        facts = (await store.change("chat", plans.plan(plans.move(PromoteQueued(queued_id=moved))))).facts
        assert [queued.id for queued in facts.queue] == [moved, *queue]
        assert verify_stored("chat", await store.rows("chat")) == Verdict(ok=True)
        if waiting > 1:
            with closing(sqlite3.connect(path, isolation_level=None)) as on:
                on.execute("UPDATE queue SET rank = -rank")
            verdict = verify_stored("chat", await store.rows("chat"))
            assert (verdict.ok, verdict.place) == (False, "queue.rank")


async def test_event_before_the_first_is_found(tmp_path: Path) -> None:
    async with opened(SQLiteStore(tmp_path / "chats.db")) as store:
        await plans.created(store, "chat", plans.send("hi"))
        rows = await store.rows("chat")
    events = rows.tables["events"]
    more = replace(rows, tables={**rows.tables, "events": [{**events[0], "seq": 0}, *events]})
    assert (verify_stored("chat", rows).ok, verify_stored("chat", more).place) == (True, "events[0]")


def with_last_writes(rows: ChatRows, change: Callable[[WriteRecord], WriteRecord | None]) -> ChatRows:
    """Return the rows with changed writes of the last record, rehashed; `None` drops a write."""
    *before, last = log_of("chat", rows.audit)
    forged = replace(last, writes=tuple(after for write in last.writes if (after := change(write)) is not None))
    forged = replace(forged, hash=hash_of(forged))
    audit = [*rows.audit[: len(before)], rows.audit[-1]._replace(hash="", body=to_json(forged))]
    return replace(rows, chat={**rows.chat, "head": forged.hash}, audit=audit)


def with_span(rows: ChatRows, span: str) -> ChatRows:
    return with_last_writes(rows, lambda write: write._replace(id=span) if write.kind == "events" else write)


async def test_last_record_must_cover_the_chat_row(tmp_path: Path) -> None:
    async with opened(SQLiteStore(tmp_path / "chats.db")) as store:
        await plans.created(store, "chat")
        forged = with_last_writes(await store.rows("chat"), lambda write: None if write.kind == "facts" else write)
    verdict = verify_stored("chat", forged)
    assert (verdict.ok, "does not cover the row" in str(verdict.problem)) == (False, True)


async def test_missing_reason_is_found(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with Engine(SQLiteStore(path), model="demo", settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await engine.interrupt(chat.id, reason="enough")
        with closing(sqlite3.connect(path, isolation_level=None)) as on:
            on.execute("UPDATE audit SET aside = json_set(aside, '$.reason', NULL, '$.salt', '') WHERE version = 3")
        assert "the reason is missing, and was not erased" in str((await engine.verify(chat.id)).problem)


@pytest.mark.parametrize("span", ["2-9999999999999999", "2-4", "3-2", "9999999999999998-9999999999999999"])
async def test_oversized_event_span_is_found_at_once(tmp_path: Path, span: str) -> None:
    """At once, for any length."""
    async with opened(SQLiteStore(tmp_path / "chats.db")) as store:
        await plans.created(store, "chat", plans.send("hi"))
        rows = await store.rows("chat")
    true_span = next(write.id for write in log_of("chat", rows.audit)[-1].writes if write.kind == "events")
    assert true_span == "2-3"
    assert verify_stored("chat", with_span(rows, true_span)).ok
    verdict = verify_stored("chat", with_span(rows, span))
    assert (verdict.ok, verdict.place) == (False, f"events[{span}]")


# Logs whose end is lost


class Lived:
    """A chat with rows in every table, and the length of its log at that time."""

    def __init__(self, engine: Engine, store: SQLiteStore, chat_id: str, length: int) -> None:
        self.engine = engine
        self.chat_id = chat_id
        self.length = length
        self._store = store

    async def rows(self) -> ChatRows:
        return await self._store.rows(self.chat_id)

    async def sound(self) -> Verdict:
        return verify_stored(self.chat_id, await self.rows())

    def without_end(self, rows: ChatRows, *, lost: int = 0) -> Verdict:
        """Verify the chat without its later records, and without more of them."""
        return verify_stored(self.chat_id, replace(rows, audit=rows.audit[: self.length - lost]))


@pytest.fixture
async def lived(tmp_path: Path) -> AsyncIterator[Lived]:
    store = SQLiteStore(tmp_path / "chats.db")
    async with engine_on(store) as engine:
        chat_id = await live(engine)
        yield Lived(engine, store, chat_id, (await engine.get_chat(chat_id)).version)


async def _finish(engine: Engine, chat_id: str) -> None:
    await engine.submit_tool_results(chat_id, [ToolResult("call-3", "large")])
    await engine.interrupt(chat_id, reason="enough")
    await engine.wait(chat_id)


async def _queue(engine: Engine, chat_id: str) -> None:
    waiting = [queued.id for queued in await engine.queued(chat_id)]
    await engine.edit_queued(chat_id, waiting[0], "waits otherwise")
    await engine.promote_queued(chat_id, waiting[1])


async def _cut(engine: Engine, chat_id: str) -> None:
    await engine.edit_message(chat_id, "m6", "edited again")


async def _forget_queued(engine: Engine, chat_id: str) -> None:
    waiting = (await engine.queued(chat_id))[0].id
    await engine.delete_queued(chat_id, waiting)
    await engine.erase_message(chat_id, waiting)


LATER: Final[dict[str, Callable[[Engine, str], Awaitable[object]]]] = {
    "a message is sent": lambda engine, chat_id: engine.send_message(chat_id, "more", client_id="client-9"),
    "a result is given": _finish,
    "the queue is changed": _queue,
    "messages are cut, and a boundary with them": _cut,
    "the title is changed": lambda engine, chat_id: engine.rename(chat_id, "another"),
    "what waited is taken back and erased": _forget_queued,
    "everything is erased": lambda engine, chat_id: engine.erase(chat_id, what=["everything"]),
}


@pytest.mark.parametrize("name", few(LATER, 2))
async def test_lost_records_explain_later_changes(lived: Lived, name: str) -> None:
    await LATER[name](lived.engine, lived.chat_id)
    assert await lived.sound() == Verdict(ok=True)
    verdict = lived.without_end(await lived.rows())
    assert (verdict.ok, verdict.position) == (False, lived.length + 1), verdict


@pytest.mark.parametrize(
    ("table", "changes"),
    few(
        [
            ("messages", {"role": "system"}),
            ("receipts", {"body": "{}"}),
            ("usage", {"body": "{}"}),
            ("boundaries", {"carried": "[7]"}),
            ("boundaries", {"reason": "clear"}),
            ("events", {"body": '{"turn":7}'}),
        ],
        2,
    ),
)
async def test_unexplainable_change_is_found_without_the_end(lived: Lived, table: str, changes: dict[str, Any]) -> None:
    rows = await lived.rows()
    wrong = next(row for row in rows.tables[table] if table != "events" or row["kind"] == "turn_finished")
    verdict = lived.without_end(_with(rows, table, wrong, **changes), lost=1)
    assert verdict.position is not None
    assert verdict.position < lived.length
    assert verdict.place.startswith((f"{table}[", f"{table}."))


def _with(rows: ChatRows, table: str, wrong: Any, **changes: Any) -> ChatRows:
    """Return the rows with other values in one of them."""
    found = [{**row, **changes} if row is wrong else row for row in rows.tables[table]]
    return replace(rows, tables={**rows.tables, table: found})
