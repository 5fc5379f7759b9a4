"""Every column of every table, poisoned by SQL in many ways: what is asked of that chat is answered by typed errors."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from msgspec.structs import replace

from support.poisoned_chat import COLUMNS, LIFE, nested, poison
from support.sql_by_hand import by_hand
from turnwise import ChatNotFound, ChatUnreadable, Engine, Settings, StoreError, TurnwiseError
from turnwise.persistence.audit.verify import Verdict
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.arguments import Erasing
from turnwise.states.triggers import MessageErased

pytestmark = pytest.mark.anyio

IDLE: Final = Settings(run_worker=False)
POISONS: Final[Sequence[object]] = ("poison", b"\xff\x00", "", "7", -1, 2**62, 0.5, None)
IN_JSON: Final = ("{}", "[]", "null", '"text"', '{"a": 1}', "[[1], {}]")
"""For columns of JSON: elsewhere they are words like any other."""
JSON_COLUMNS: Final = {"body", "facts", "calls", "carried", "aside", "needs", "awaits", "sent"}

READS: Final[dict[str, Callable[[Engine], Awaitable[Any]]]] = {
    "get_chat": lambda engine: engine.get_chat("poisoned"),
    "queued": lambda engine: engine.queued("poisoned"),
    "messages": lambda engine: engine.messages("poisoned"),
    "what the model sees": lambda engine: engine.messages("poisoned", view="model"),
    "transcript": lambda engine: engine.transcript("poisoned"),
    "compactions": lambda engine: engine.compactions("poisoned"),
    "usage": lambda engine: engine.usage("poisoned"),
    "audit": lambda engine: engine.audit("poisoned"),
    "export_audit": lambda engine: engine.export_audit("poisoned"),
}
WRITES: Final[dict[str, Callable[[Engine], Awaitable[Any]]]] = {
    "fork": lambda engine: engine.fork("poisoned", at_version=3),
    "edit": lambda engine: engine.edit_message("poisoned", "m1", "something else"),
    "rename": lambda engine: engine.rename("poisoned", "a title"),
    "erase_message": lambda engine: engine.erase_message("poisoned", "m1"),
    "erase": lambda engine: engine.erase("poisoned", what=["errors", "reasons", "messages"]),
    "interrupt": lambda engine: engine.interrupt("poisoned"),
}


async def _events(engine: Engine) -> None:
    async for _ in engine.events("poisoned", follow=False):
        pass


async def _answers(engine: Engine) -> None:
    """Ask everything of a damaged chat: what is raised is typed, and three questions are always answered."""
    verdict = await engine.verify("poisoned")
    assert isinstance(verdict, Verdict)
    assert verdict.ok or (verdict.position is not None and verdict.problem)
    assert (await engine.explain("poisoned")).reason
    assert await engine.export_rows("poisoned")
    for ask in (_events, *READS.values(), *WRITES.values()):
        with suppress(TurnwiseError):
            await ask(engine)


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{table}.{name}" for table, name in COLUMNS])
async def test_a_poisoned_column_raises_nothing_but_typed_errors(
    lived: Path,
    tmp_path: Path,
    table: str,
    column: str,
) -> None:
    """`verify` and `explain` raise nothing at all, whatever is stored."""
    for number, value in enumerate((*POISONS, *(IN_JSON if column in JSON_COLUMNS else ()))):
        path = tmp_path / f"chats{number}.db"
        try:
            poison(lived, path, table, column, value)
        except sqlite3.IntegrityError:
            continue  # the database itself refuses that
        async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=IDLE) as engine:
            try:
                await _answers(engine)
            except ChatNotFound:
                assert (table, column) == ("chats", "id")


IN_BODIES: Final = {
    "messages": ("position", "turn", "step", "id"),
    "calls": ("index", "step"),
    "events": ("queue[0].id",),
}
"""Fields by which rows are found and counted, as their bodies say them."""
ODD: Final = (str(2**62), str(2**63), str(2**70), "-1", '"x"', "7", "null")
"""JSON for them: some fit into no column, some are no name."""


@pytest.mark.parametrize("place", [(table, field) for table in IN_BODIES for field in IN_BODIES[table]], ids=".".join)
async def test_a_field_of_a_body_that_no_column_could_hold_is_told_by_its_place(
    lived: Path, tmp_path: Path, place: tuple[str, str]
) -> None:
    """No database has to refuse it: that would name neither the chat nor the column."""
    table, field = place
    for number, value in enumerate(ODD):
        path = tmp_path / f"chats{number}.db"
        shutil.copy(lived, path)
        sql = f"UPDATE {table} SET body = json_set(body, '$.{field}', json(?)) WHERE chat_id = 'poisoned'"  # noqa: S608 - names
        with closing(sqlite3.connect(path)) as on, on:
            changed = on.execute(f"{sql} AND json_extract(body, '$.{field}') IS NOT NULL", (value,)).rowcount
            assert changed > 0, "the life leaves no such row"
        async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=IDLE) as engine:
            for ask in (*READS.values(), *WRITES.values()):
                try:
                    await ask(engine)
                except ChatUnreadable as error:
                    assert error.column.partition(".")[0].partition("[")[0] == table, (value, error)  # noqa: PT017
                except StoreError as error:
                    pytest.fail(f"{value}: {error}")
                except TurnwiseError:
                    continue


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{table}.{name}" for table, name in COLUMNS])
async def test_everything_of_a_chat_that_cannot_be_read_can_be_erased(
    lived: Path,
    tmp_path: Path,
    table: str,
    column: str,
) -> None:
    """What was said is in no row any more, readable or not, and in no file."""
    if (table, column) == ("chats", "id"):
        return  # nobody knows whose rows these are
    for number, value in enumerate(("poison", b"\xff\x00", "{}", -1, None)):
        path = tmp_path / f"chats{number}.db"
        try:
            poison(lived, path, table, column, value)
        except sqlite3.IntegrityError:
            continue
        async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=IDLE) as engine:
            erasure = await engine.erase("poisoned", what=["everything"])
            assert erasure.overwritten
            if column == "chat_id":
                continue  # rows without a chat: the doctor finds them
            rows = await engine.export_rows("poisoned")
            kept = [line for line in rows.splitlines() if json.loads(line)["table"] != "quarantine"]
            assert not [line for line in kept if "and then?" in line or "I look" in line], (value, kept)


SPOTS: Final = {
    "messages.body": ("messages", "chat_id", "body"),
    "messages.digest": ("messages", "chat_id", "digest"),
    "calls.body": ("calls", "chat_id", "body"),
    "receipts.body": ("receipts", "chat_id", "body"),
    "usage.body": ("usage", "chat_id", "body"),
    "events.body": ("events", "chat_id", "body"),
    "audit.body": ("audit", "chat_id", "body"),
    "audit.aside": ("audit", "chat_id", "aside"),
    "profiles.body": ("profiles", "chat_id", "body"),
    "facts.body": ("facts", "chat_id", "body"),
    "chats.head": ("chats", "id", "head"),
}
"""Columns of text, where PostgreSQL takes every word."""


@pytest.mark.parametrize("spot", SPOTS)
async def test_postgresql_raises_nothing_but_typed_errors(
    postgres_url: str, beside: asyncpg.Connection, spot: str
) -> None:
    """The same there, and everything can be erased."""
    table, key, column = SPOTS[spot]
    store = PostgresStore(postgres_url)
    await store.open()
    await plans.created(store, "poisoned", *LIFE, owner="ann")
    await store.close()
    keep = await beside.fetch(f"SELECT ctid, {column} FROM {table} WHERE {key} = 'poisoned'")  # noqa: S608 - names
    assert keep
    async with Engine(postgres_url, model=ScriptedModel(()), settings=IDLE) as engine:
        for value in ("poison", "{}", "null", '{"a": 1}', "[]"):
            sql = f"UPDATE {table} SET {column} = $1 WHERE {key} = 'poisoned'"  # noqa: S608 - names
            await beside.execute(sql, value)
            assert isinstance(await engine.verify("poisoned"), Verdict)
            assert (await engine.explain("poisoned")).reason
            for ask in (_events, *READS.values(), WRITES["fork"], WRITES["erase_message"]):
                with suppress(TurnwiseError):
                    await ask(engine)
        await engine.erase("poisoned", what=["everything"])
        rows = await engine.export_rows("poisoned")
        assert not [
            line for line in rows.splitlines() if json.loads(line)["table"] != "quarantine" and "and then?" in line
        ]


async def test_a_profile_that_nobody_can_walk_through_is_one_chats_trouble(either_url: str) -> None:
    """Of the profile everything else is kept."""
    async with Engine(either_url, model=ScriptedModel(()), settings=IDLE) as engine:
        sound, poisoned = [(await engine.create_chat(owner="ann", title=title)).id for title in ("sound", "poisoned")]
        sql = f"UPDATE profiles SET body = {nested('body')} WHERE chat_id = '{poisoned}'"  # noqa: S608 - of the test
        await by_hand(either_url, sql)
    async with Engine(either_url, model=ScriptedModel(()), settings=IDLE) as engine:
        chats = {chat.id: chat for chat in (await engine.list_chats()).items}
        assert (chats[sound].unreadable, chats[poisoned].title) == (None, "poisoned")
        assert "profiles.body: " in str(chats[poisoned].unreadable)
        for ask in (engine.get_chat(poisoned), engine.rename(poisoned, "new"), engine.send_message(poisoned, "hello")):
            with pytest.raises(ChatUnreadable, match=r"profiles\.body.*nested deeper than 160 levels"):
                await ask
        assert [diagnosis.chat_id async for diagnosis in engine.diagnose()] == [poisoned]
        chat = await engine.repair(poisoned)
        assert (chat.owner, chat.title, chat.metadata) == ("ann", "poisoned", {})


async def test_a_time_without_a_zone_is_one_chats_trouble(either_url: str) -> None:
    """Nothing can be counted from it: the doctor names it, and whatever an operator does about it works."""
    is_sqlite = either_url.startswith("sqlite")
    places = dict.fromkeys(("profiles", "messages", "calls", "queue"), "body")
    places |= {"chats": "facts"} if is_sqlite else {"facts": "body"}
    store = store_from_url(either_url, durability="normal", now=None)
    async with Engine(store, model=ScriptedModel(()), settings=IDLE):
        for table in ("sound", *places):
            await plans.created(store, table, *LIFE)
    for table, column in places.items():
        key = "id" if table == "chats" else "chat_id"
        await by_hand(
            either_url,
            f"UPDATE {table} SET {column} = replace({column}, 'Z\"', '\"') WHERE {key} = '{table}'",  # noqa: S608
        )
    async with Engine(either_url, model=ScriptedModel(()), settings=IDLE) as engine:
        diagnosed = {found.chat_id: {flaw.column for flaw in found.flaws} async for found in engine.diagnose()}
        assert diagnosed == {table: {f"{table}.{column}"} for table, column in places.items()}
        for table in places:
            assert (await engine.explain(table)).unreadable
            for ask in (engine.get_chat, engine.messages, engine.archive):
                with suppress(TurnwiseError):
                    await ask(table)
            assert (await engine.repair(table)).state == "error"
            await engine.erase(table, what=["everything"])
            await engine.delete_chat(table)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_erasure_that_meets_what_cannot_be_read_says_where(
    tmp_path: Path, postgres_url: str, beside: asyncpg.Connection, kind: str
) -> None:
    """It was worked out on sound rows; another process has damaged one since."""
    path = tmp_path / "chats.db"
    store = SQLiteStore(path) if kind == "sqlite" else PostgresStore(postgres_url)
    await store.open()
    await plans.created(store, "poisoned", *LIFE)
    (said, *_) = await store.history("poisoned")
    damage = "UPDATE events SET body = 'poison' WHERE chat_id = 'poisoned'"
    if kind == "sqlite":
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(damage)
    else:
        await beside.execute(damage)
    blank = replace(said, parts=(), erased=True)
    before = await store.facts("poisoned")
    erased = plans.move(MessageErased(erasing=Erasing(messages=(blank,))))
    with pytest.raises(ChatUnreadable, match=r"events\.body"):
        await store.change("poisoned", plans.plan(erased))
    assert await store.facts("poisoned") == before
    await store.close()


@pytest.mark.parametrize("table", ["chats", "profiles", "messages", "queue"])
async def test_what_was_stored_before_there_were_salts_verifies(lived: Path, tmp_path: Path, table: str) -> None:
    path = tmp_path / "chats.db"
    poison(lived, path, table, "salt", None)
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=IDLE) as engine:
        assert (await engine.verify("poisoned")).ok
