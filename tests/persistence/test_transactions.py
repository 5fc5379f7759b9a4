"""Transactions on SQLite: reads before writes, claims, and refusals."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.persistence.sqlite_chats import NOON, Chats

from turnwise.persistence.chat_cache import SkippedChats
from turnwise.persistence.commit import RequiredLease
from turnwise.persistence.protocol import Pruned
from turnwise.persistence.sql import raw_rows
from turnwise.persistence.sql.reads import ChatReads
from turnwise.persistence.sql.store import prune
from turnwise.persistence.sqlite.database import in_one_snapshot, run_sync
from turnwise.states.arguments import Erasing
from turnwise.states.errors import ChatNotFound, ChatUnreadable
from turnwise.states.names import ChatState
from turnwise.states.triggers import ClearContext, MessageErased, Renamed
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


@pytest.mark.parametrize(
    ("column", "value"), [("event_seq", "poison"), ("event_seq", -1), ("head", "poison"), ("head", 5)]
)
def test_change_refuses_garbled_columns(chats: Chats, column: str, value: object) -> None:
    chats.live("chat")
    chats.sql(f"UPDATE chats SET {column} = ?", value)  # noqa: S608 - two names
    with pytest.raises(ChatUnreadable, match=rf"chats\.{column}") as caught:
        chats.change("chat", plans.send("hello"))
    assert caught.value.chat_id == "chat"
    assert chats.sql("SELECT version FROM chats") == [(1,)]


def test_erased_chat_leaves_the_cache(chats: Chats) -> None:
    """Its facts may still hold the arguments of calls whose rows are blank."""
    chats.live("chat", plans.send("hello"))
    (message,) = chats.read(ChatReads.history)
    erasing = Erasing(messages=(replace(message, parts=(), erased=True),))
    chats.change("chat", plans.move(MessageErased(erasing=erasing)), plans.move(Renamed(title="x")))
    assert chats.cache.get("chat") is None


# Commits on what is remembered


def test_cached_chat_is_changed_without_a_read(chats: Chats) -> None:
    chats.live("chat")
    chats.at = NOON + timedelta(hours=1)
    asked: list[str] = []
    chats.on.set_trace_callback(asked.append)
    committed = run_sync(chats.optimistic.change("chat", plans.plan(plans.send("hello")), ()))
    assert (committed.at, committed.facts.version) == (chats.at, 2)
    assert {event.at for event in committed.events} == {chats.at}
    again = run_sync(chats.optimistic.change("chat", plans.plan(plans.claim()), ()))
    assert (again.before, again.facts.version) == (committed.facts, 3)
    assert not [sql for sql in asked if sql.lstrip().startswith("SELECT")]


def test_erasure_reads_the_rows(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"))
    (message,) = chats.read(ChatReads.history)
    blank = replace(message, parts=(), erased=True)
    before = list(chats.on.iterdump())
    erase = plans.plan(plans.move(MessageErased(erasing=Erasing(messages=(blank,)))))
    assert run_sync(chats.optimistic.change("chat", erase, ())) is None
    assert list(chats.on.iterdump()) == before


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE chats SET event_seq = event_seq + 1",
        "UPDATE chats SET head = replace(head, substr(head, 1, 1), 'x')",
        "UPDATE chats SET version = version + 1",
        "UPDATE chats SET state = 'lost'",
        "UPDATE chats SET facts = facts || ' '",
        "UPDATE chats SET token = token + 1",
        "UPDATE chats SET worker = NULL, token = NULL",
    ],
)
def test_changed_row_defeats_the_cache(chats: Chats, sql: str) -> None:
    chats.live("chat", plans.send("hello"), plans.claim())
    chats.sql(sql)
    before = list(chats.on.iterdump())
    assert run_sync(chats.optimistic.change("chat", plans.plan(plans.send("more")), ())) is None
    assert list(chats.on.iterdump()) == before


# Queries


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("version", "0"),
        ("version", "-1"),
        ("version", "9e999"),
        ("version", "2.5"),
        ("version", "'poison'"),
        ("version", "x'ff'"),
        ("head", "x'ff'"),
        ("head", "'poison'"),
        ("head", "7"),
    ],
)
def test_invalid_head_names_its_column(chats: Chats, column: str, value: str) -> None:
    chats.live("sound")
    chats.live("bad")
    chats.sql(f"UPDATE chats SET {column} = {value} WHERE id = 'bad'")  # noqa: S608
    assert chats.read(ChatReads.head, "sound")[0] == 1
    with pytest.raises(ChatUnreadable, match=f"chats.{column}"):
        chats.read(ChatReads.head, "bad")


def test_invalid_boundary_names_its_column(chats: Chats) -> None:
    chats.live("chat", *plans.turn("one", "1"), plans.move(ClearContext()), plans.send("two"))
    assert [message.text for message in chats.read(ChatReads.prompt)] == ["two"]
    for column, garbage in (
        *(("carried", garbage) for garbage in ("poison", '["x"]', "{}", b"\xff")),
        ("position", -1),
    ):
        ((value,),) = chats.sql(f"SELECT {column} FROM boundaries")  # noqa: S608 - two names
        chats.sql(f"UPDATE boundaries SET {column} = ?", garbage)  # noqa: S608
        with pytest.raises(ChatUnreadable, match=rf"boundaries\.{column}"):
            chats.read(ChatReads.prompt)
        chats.sql(f"UPDATE boundaries SET {column} = ?", value)  # noqa: S608
    chats.sql("UPDATE boundaries SET cut = 9")
    assert len(chats.read(ChatReads.prompt)) == 3


def test_pruning_passes_over_parts_without_a_chat(chats: Chats) -> None:
    with pytest.raises(ChatNotFound):
        chats.read(ChatReads.facts, "none")
    for chat_id in ("gone", "left"):
        chats.live(chat_id, plans.send("hi"), plans.claim())
        chats.transactions.append_events(chats.on, chat_id, RequiredLease(1, None, ChatState.streaming), [part("a")])
        chats.change(chat_id, plans.reply("a"))
    chats.sql("PRAGMA foreign_keys = OFF")
    chats.sql("DELETE FROM chats WHERE id = 'gone'")
    assert run_sync(prune(chats.database, SkippedChats(), keep=0, after="", limit=9)) == Pruned(1, None)
    assert chats.sql("SELECT count(*) FROM events WHERE kind = 'part'") == [(1,)]


def test_snapshot_read_leaves_no_transaction(chats: Chats) -> None:
    def fail(_on: sqlite3.Connection) -> None:
        assert chats.on.in_transaction
        raise ValueError("no answer")

    chats.on.execute("BEGIN")
    with pytest.raises(ValueError, match="no answer"):
        in_one_snapshot(chats.on, fail)
    assert not chats.on.in_transaction
    assert in_one_snapshot(chats.on, lambda on: on.in_transaction) is True
    assert not chats.on.in_transaction


def test_orphaned_rows_name_table_and_chat(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"))
    assert run_sync(raw_rows.orphans_in(chats.database)) == []
    chats.sql("PRAGMA foreign_keys = OFF")
    chats.sql("UPDATE messages SET chat = 7")
    (issue,) = run_sync(raw_rows.orphans_in(chats.database))
    assert issue.column == "messages.chat"
    assert "1 row(s) of 7" in issue.problem


def test_only_damage_is_blamed_on_the_chat_rows(chats: Chats) -> None:
    async def fail(error: BaseException) -> None:
        raise error

    def read(error: BaseException) -> None:
        run_sync(raw_rows.read_or_blame(chats.database, "chat", lambda: fail(error)))

    chats.live("chat", plans.send("hi"))
    for error in (sqlite3.OperationalError("disk I/O error"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            read(error)
    chats.sql("UPDATE messages SET body = 'poison'")
    with pytest.raises(ChatUnreadable, match=r"messages\.body"):
        read(ValueError("it went wrong"))
