"""Questions to SQLite by themselves: who is found, in which order, up to where, and what of damage is told."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest

from support.sqlite_chats import NOON, Chats
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.passed_over import PassedOver
from turnwise.persistence.protocol import Expiry, Pruned
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sqlite import pruning, queries, raw_rows
from turnwise.persistence.stored_chat import Salvaged
from turnwise.states.errors import ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Archived, ClearContext

MICROS: Final = micros_of(NOON)


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


def listed(
    chats: Chats, *, owner: str | None = None, state: ChatState | None = None, limit: int = 9, after: str | None = None
) -> list[str]:
    found = queries.chats(chats.on, owner=owner, state=state, limit=limit, after=after)
    return [(chat.facts if isinstance(chat, Salvaged) else chat).chat_id for chat in found]


def test_chats_are_listed_by_owner_state_and_page_together(chats: Chats) -> None:
    for number, owner in enumerate((None, "ann", "bob", "ann", "ann")):
        chats.live(f"c{number}", *([plans.send("hello")] if number % 2 else []), owner=owner)
    assert listed(chats) == ["c4", "c3", "c2", "c1", "c0"]
    assert listed(chats, owner="ann") == ["c4", "c3", "c1"]
    assert listed(chats, state=ChatState.pending) == ["c3", "c1"]
    assert listed(chats, owner="ann", state=ChatState.pending, limit=1) == ["c3"]
    assert listed(chats, owner="ann", after="c3") == ["c1"]
    assert listed(chats, owner="ann", state=ChatState.waiting, after="c4") == []
    assert listed(chats, after="none") == []
    assert listed(chats, owner="") == []
    chats.sql("UPDATE chats SET facts = 'poison' WHERE id = 'c3'")
    assert listed(chats, limit=2) == ["c4", "c3"]


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
def test_a_head_that_is_none_is_told_by_its_column(chats: Chats, column: str, value: str) -> None:
    chats.live("sound")
    chats.live("bad")
    chats.sql(f"UPDATE chats SET {column} = {value} WHERE id = 'bad'")  # noqa: S608
    assert queries.head(chats.on, "sound")[0] == 1
    with pytest.raises(ChatUnreadable, match=f"chats.{column}"):
        queries.head(chats.on, "bad")


def test_ids_are_found_by_their_beginning_whatever_it_holds(chats: Chats) -> None:
    for second, chat_id in enumerate(("a%", "ab", "a_", "b", "a\U0001f600")):
        chats.at = NOON + timedelta(seconds=second)
        chats.live(chat_id)
    assert queries.ids(chats.on, "a", 9) == ["a\U0001f600", "a_", "ab", "a%"]
    assert queries.ids(chats.on, "a", 2) == ["a\U0001f600", "a_"]
    assert queries.ids(chats.on, "a%", 9) == ["a%"]
    assert queries.ids(chats.on, "b", 9) == ["b"]
    assert queries.ids(chats.on, "", 9) == ["a\U0001f600", "b", "a_", "ab", "a%"]


def test_the_end_of_a_lease(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"))
    assert queries.lease_expiry(chats.on, "chat", now=NOON) is None
    chats.transactions.change(chats.on, "chat", plans.plan(plans.claim(lease=30)), ())
    ends = NOON + timedelta(seconds=30)
    for now, is_over in ((NOON, False), (ends, True)):
        expiry = queries.lease_expiry(chats.on, "chat", now=now)
        assert expiry == Expiry(ends, now)
        assert expiry.is_over is is_over
    chats.sql("UPDATE leases SET expires = 'poison'")
    with pytest.raises(ChatUnreadable, match=r"leases\.expires"):
        queries.lease_expiry(chats.on, "chat", now=NOON)


def test_what_has_run_out_is_told_in_order_and_in_bounds(chats: Chats) -> None:
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


def test_deadlines_are_those_of_open_calls_in_chats_that_wait_for_them(chats: Chats) -> None:
    for chat_id in ("asked", "twice", "archived", "stopped", "answered", "half", "whole"):
        chats.live(
            chat_id,
            plans.send("hello"),
            plans.claim(),
            plans.start(),
            plans.reply("?", client=[f"{chat_id}1", f"{chat_id}2"]),
        )

    def due(now: int = MICROS, limit: int = 9) -> list[str]:
        return sorted(queries.overdue(chats.on, now=now, limit=limit).deadlines)

    assert due() == ["answered", "archived", "asked", "half", "stopped", "twice", "whole"]
    assert due(MICROS - 1) == []
    assert len(due(limit=2)) == 2, "of two chats, although each has two calls"
    chats.transactions.change(chats.on, "archived", plans.plan(plans.move(Archived())), ())
    chats.sql("UPDATE chats SET state = 'interrupted' WHERE id = 'stopped'")
    chats.transactions.change(chats.on, "answered", plans.plan(plans.submit("answered1", "answered2")), ())
    chats.sql("UPDATE chats SET state = 'requires_action' WHERE id = 'answered'")
    assert due() == ["asked", "half", "twice", "whole"]
    chats.sql("UPDATE calls SET status = 'succeeded' WHERE call_id IN ('half1', 'whole1', 'whole2')")
    assert due() == ["asked", "half", "twice"], "a call that has ended counts for nothing, whatever its row keeps"


def test_strays_are_told_in_the_order_of_their_creation(chats: Chats) -> None:
    for chat_id in "cab":
        chats.live(chat_id)
    chats.sql("UPDATE chats SET state = 'lost'")
    chats.live("sound")
    assert queries.overdue(chats.on, now=0, limit=9).strays == ("c", "a", "b")
    assert queries.overdue(chats.on, now=0, limit=2).strays == ("c", "a")


def test_history_as_of_a_version(chats: Chats) -> None:
    chats.live("chat", *plans.turn("one", "1"), *plans.turn("two", "2"))
    added = dict(chats.sql("SELECT position, added FROM messages"))

    def then(version: int | None, after: int = 0) -> list[int]:
        return [said.position for said in queries.history(chats.on, "chat", at_version=version, after=after)]

    assert then(None) == [1, 2, 3, 4]
    assert then(None, 2) == [3, 4]
    for position, version in added.items():
        assert then(version) == list(range(1, position + 1))
        assert then(version - 1) == list(range(1, position))
    assert then(added[4], 2) == [3, 4]
    chats.sql("UPDATE messages SET cut = 50 WHERE position > 2")
    assert (then(None), then(49), then(50)) == ([1, 2], [1, 2, 3, 4], [1, 2])


def test_a_boundary_that_cannot_be_read_is_told_at_its_place(chats: Chats) -> None:
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


def test_what_was_shown_and_why_the_turn_ended(chats: Chats) -> None:
    chats.live("chat", plans.send("one"), plans.claim(), plans.start())
    assert queries.snapshot(chats.on, "chat").stop_reason is None
    chats.transactions.journal(chats.on, "chat", 1, ChatState.streaming, [part("a"), part("b")])
    assert len(queries.snapshot(chats.on, "chat").shown) == 2
    assert len(queries.shown(chats.on, "chat", 1, 1)) == 2
    assert queries.shown(chats.on, "chat", 1, 2) == queries.shown(chats.on, "chat", 2, 1) == []
    chats.transactions.change(chats.on, "chat", plans.plan(plans.reply("ab")), ())
    assert queries.snapshot(chats.on, "chat").shown == ()
    assert queries.snapshot(chats.on, "chat").stop_reason == "end_turn"
    numbers = [event.seq for event in queries.events(chats.on, "chat", after=0, limit=99)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [event.seq for event in queries.events(chats.on, "chat", after=2, limit=3)] == [3, 4, 5]


def test_calls_and_receipts_are_found_by_their_ids_in_their_chat(chats: Chats) -> None:
    for chat_id in ("chat", "other"):
        chats.live(
            chat_id, plans.send("hi", client_id="c1"), plans.claim(), plans.start(), plans.reply("", local=["b", "a"])
        )
    assert [*queries.calls(chats.on, "chat", ["a", "b", "z"])] == ["b", "a"]
    assert [*queries.calls(chats.on, "chat", ["a"])] == ["a"]
    assert queries.receipt(chats.on, "chat", "c2") is None
    assert queries.receipt(chats.on, "none", "c1") is None
    found = queries.receipt(chats.on, "chat", "c1")
    assert found is not None
    assert found.client_id == "c1"
    assert len(queries.ledger(chats.on, "chat")) == 1


def test_a_log_that_cannot_be_read_is_told(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"))
    assert [record.version for record in queries.audit(chats.on, "chat")] == [1, 2]
    chats.sql("UPDATE audit SET body = 'poison' WHERE version = 1")
    with pytest.raises(ChatUnreadable, match=r"audit\.body"):
        queries.audit(chats.on, "chat")


def test_a_chat_that_is_not_there_is_not_found_and_its_parts_are_passed_over(
    chats: Chats, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_who_has_pruned_as_much_as_it_may_looks_no_further(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"), plans.claim(), plans.start())
    chats.transactions.journal(chats.on, "chat", 1, ChatState.streaming, [part("a"), part("b"), part("c")])
    chats.change("chat", plans.reply("abc"))
    asked: list[str] = []
    chats.on.set_trace_callback(asked.append)
    assert pruning.prune(chats.on, PassedOver(), until=NOON, after="", limit=2) == Pruned(2, "")
    assert sum("SELECT chat_id" in sql and "FROM events" in sql for sql in asked) == 1


def test_a_question_leaves_no_transaction_behind(chats: Chats) -> None:
    def fail(_on: sqlite3.Connection) -> None:
        assert chats.on.in_transaction
        raise ValueError("no answer")

    chats.on.execute("BEGIN")
    with pytest.raises(ValueError, match="no answer"):
        queries.in_one_snapshot(chats.on, fail)
    assert not chats.on.in_transaction
    assert queries.in_one_snapshot(chats.on, lambda on: on.in_transaction) is True
    assert not chats.on.in_transaction


def test_raw_rows_are_those_of_one_chat(chats: Chats) -> None:
    for chat_id in ("chat", "other"):
        chats.live(chat_id, plans.send("hi"), plans.claim())
    rows = raw_rows.rows_of(chats.on, "chat")
    assert rows["chats"][0]["id"] == "chat"
    assert {row["chat_id"] for table, found in rows.items() for row in found if table != "chats"} == {"chat"}
    assert {"messages", "leases", "audit", "quarantine"} <= rows.keys()
    with pytest.raises(ChatNotFound):
        raw_rows.rows_of(chats.on, "none")
    assert [chat_id for _, chat_id in raw_rows.chat_ids(chats.on, after=0, limit=9)] == ["chat", "other"]
    ((first, _),) = raw_rows.chat_ids(chats.on, after=0, limit=1)
    assert [chat_id for _, chat_id in raw_rows.chat_ids(chats.on, after=first, limit=9)] == ["other"]


def test_rows_of_no_chat_are_told_by_table_and_id(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"))
    assert raw_rows.orphans(chats.on) == []
    chats.sql("PRAGMA foreign_keys = OFF")
    chats.sql("UPDATE messages SET chat_id = 'gone'")
    (flaw,) = raw_rows.orphans(chats.on)
    assert flaw.column == "messages.chat_id"
    assert "1 row(s) of 'gone'" in flaw.problem


def test_only_damage_is_blamed_on_the_chat(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"))
    for error in (sqlite3.OperationalError("disk I/O error"), KeyboardInterrupt()):
        with pytest.raises(type(error)), raw_rows.blaming(chats.on, "chat"):
            raise error
    chats.sql("UPDATE messages SET body = 'poison'")
    with pytest.raises(ChatUnreadable, match=r"messages\.body"), raw_rows.blaming(chats.on, "chat"):
        raise ValueError("it went wrong")


def test_ids_of_calls_that_cannot_be_read_are_told(chats: Chats) -> None:
    chats.live("chat", plans.send("hi"), plans.claim(), plans.start(), plans.reply("", local=["a"]))
    assert isinstance(queries.facts(chats.on, "chat"), Facts)
    for garbage in ("poison", json.dumps({"a": 1}), json.dumps([1])):
        chats.sql("UPDATE chats SET calls = ?", garbage)
        with pytest.raises(ChatUnreadable, match=r"chats\.calls"):
            queries.facts(chats.on, "chat")
