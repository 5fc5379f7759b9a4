"""Questions to SQLite by themselves: who is found, in which order, up to where, and what of damage is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest
from tests.persistence.sqlite_chats import NOON, Chats

from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.passed_over import PassedOver
from turnwise.persistence.protocol import Pruned
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sqlite import pruning, queries, raw_rows
from turnwise.states.errors import ChatNotFound, ChatUnreadable
from turnwise.states.names import ChatState
from turnwise.states.triggers import ClearContext

MICROS: Final = micros_of(NOON)


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


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
    assert queries.head(chats.on, "sound")[0] == 1
    with pytest.raises(ChatUnreadable, match=f"chats.{column}"):
        queries.head(chats.on, "bad")


def test_expired_leases_are_listed_in_order(chats: Chats) -> None:
    for number, chat_id in enumerate("cab"):
        chats.at = NOON + timedelta(seconds=number)
        chats.live(chat_id, plans.send("hello"), plans.claim(f"w{number}", lease=10))
    ends = MICROS + 10_000_000

    def out(now: int, limit: int = 9) -> list[str]:
        return [chat_id for chat_id, _ in queries.overdue(chats.on, now=now, limit=limit).leases]

    assert out(ends - 1) == []
    assert out(ends) == ["c"]
    assert out(ends + 2_000_000) == ["c", "a", "b"]
    assert out(ends + 2_000_000, 2) == ["c", "a"]
    assert queries.overdue(chats.on, now=ends, limit=9).leases == (("c", 1),)
    chats.sql("UPDATE leases SET expires = 'poison' WHERE chat_id = 'b'")
    assert out(0) == ["b"]
    assert queries.holders(chats.on) == {"w0", "w1", "w2"}
    chats.sql("UPDATE leases SET worker = x'ff' WHERE chat_id = 'b'")
    assert queries.holders(chats.on) == {"w0", "w1"}


def test_invalid_boundary_names_its_column(chats: Chats) -> None:
    chats.live("chat", *plans.turn("one", "1"), plans.move(ClearContext()), plans.send("two"))
    assert [said.text for said in queries.prompt(chats.on, "chat")] == ["two"]
    for column, garbage in (
        *(("carried", garbage) for garbage in ("poison", '["x"]', "{}", b"\xff")),
        ("position", -1),
    ):
        ((kept,),) = chats.sql(f"SELECT {column} FROM boundaries")  # noqa: S608 - two names
        chats.sql(f"UPDATE boundaries SET {column} = ?", garbage)  # noqa: S608
        with pytest.raises(ChatUnreadable, match=rf"boundaries\.{column}"):
            queries.prompt(chats.on, "chat")
        chats.sql(f"UPDATE boundaries SET {column} = ?", kept)  # noqa: S608
    chats.sql("UPDATE boundaries SET cut = 9")
    assert len(queries.prompt(chats.on, "chat")) == 3


def test_pruning_passes_over_parts_without_a_chat(chats: Chats, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ChatNotFound):
        queries.facts(chats.on, "none")
    for chat_id in ("gone", "left"):
        chats.live(chat_id, plans.send("hi"), plans.claim(), plans.start())
        chats.transactions.journal(chats.on, chat_id, 1, ChatState.streaming, [part("a")])
        chats.change(chat_id, plans.reply("a"))
    chats.sql("PRAGMA foreign_keys = OFF")
    chats.sql("DELETE FROM chats WHERE id = 'gone'")
    assert pruning.prune(chats.on, PassedOver(), until=NOON, after="", limit=9) == Pruned(1, None)
    assert len(queries.shown(chats.on, "gone", 1, 1)) == 1
    assert "prune_refused chat_id=gone" in caplog.text


def test_pruning_stops_at_its_limit(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"), plans.claim(), plans.start())
    chats.transactions.journal(chats.on, "chat", 1, ChatState.streaming, [part("a"), part("b"), part("c")])
    chats.change("chat", plans.reply("abc"))
    asked: list[str] = []
    chats.on.set_trace_callback(asked.append)
    assert pruning.prune(chats.on, PassedOver(), until=NOON, after="", limit=2) == Pruned(2, "")
    assert sum("SELECT chat_id" in sql and "FROM events" in sql for sql in asked) == 1


def test_snapshot_read_leaves_no_transaction(chats: Chats) -> None:
    def fail(_on: sqlite3.Connection) -> None:
        assert chats.on.in_transaction
        raise ValueError("no answer")

    chats.on.execute("BEGIN")
    with pytest.raises(ValueError, match="no answer"):
        queries.in_one_snapshot(chats.on, fail)
    assert not chats.on.in_transaction
    assert queries.in_one_snapshot(chats.on, lambda on: on.in_transaction) is True
    assert not chats.on.in_transaction


def test_orphaned_rows_name_table_and_chat(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"))
    assert raw_rows.orphans(chats.on) == []
    chats.sql("PRAGMA foreign_keys = OFF")
    chats.sql("UPDATE messages SET chat_id = 'gone'")
    (flaw,) = raw_rows.orphans(chats.on)
    assert flaw.column == "messages.chat_id"
    assert "1 row(s) of 'gone'" in flaw.problem


def test_only_damage_is_blamed_on_the_chat_rows(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"))
    for error in (sqlite3.OperationalError("disk I/O error"), KeyboardInterrupt()):
        with pytest.raises(type(error)), raw_rows.blaming(chats.on, "chat"):
            raise error
    chats.sql("UPDATE messages SET body = 'poison'")
    with pytest.raises(ChatUnreadable, match=r"messages\.body"), raw_rows.blaming(chats.on, "chat"):
        raise ValueError("it went wrong")
