"""Transactions on SQLite by themselves: what they read before they write, whom they claim, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.persistence.sqlite_chats import NOON, Chats, at_once

from turnwise.persistence.conformance import plans
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sqlite import queries
from turnwise.states.arguments import Erasing
from turnwise.states.errors import ChatUnreadable
from turnwise.states.triggers import MessageErased, Renamed


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


def claimed(chats: Chats, limit: int = 9) -> list[str]:
    found = chats.transactions.claim(chats.on, plans.plan(plans.claim()), plans.RUNS, limit)
    return [committed.facts.chat_id for committed in found]


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


def test_failed_claim_leaves_its_chat_unchanged(chats: Chats) -> None:
    for chat_id in "ab":
        chats.live(chat_id, plans.send("hello"))
    taken = "INSERT INTO events (chat_id, seq, kind, body) SELECT id, event_seq + 1, 'status', '{}' FROM chats"
    chats.sql(f"{taken} WHERE id = 'a'")
    before = chats.sql("SELECT * FROM chats WHERE id = 'a'")
    assert claimed(chats) == ["b"]
    assert chats.sql("SELECT * FROM chats WHERE id = 'a'") == before
    assert chats.sql("SELECT chat_id FROM leases") == [("b",)]
    assert not chats.on.in_transaction


def test_worker_renews_only_its_own_leases(chats: Chats) -> None:
    chats.live("a", plans.send("hello"), plans.claim("w", lease=30))
    chats.live("b", plans.send("hello"), plans.claim("other", lease=30))
    chats.at = NOON + timedelta(seconds=10)
    assert chats.transactions.renew(chats.on, "w", 60) == {"a": 1}
    later = micros_of(chats.at)
    assert chats.sql("SELECT chat_id, expires, lasts FROM leases ORDER BY 1") == [
        ("a", later + 60_000_000, 60_000_000),
        ("b", micros_of(NOON) + 30_000_000, 30_000_000),
    ]
    chats.at = NOON - timedelta(hours=1)
    assert chats.transactions.renew(chats.on, "nobody", 60) == {}
    assert chats.sql("SELECT expires FROM leases ORDER BY chat_id") == [
        (micros_of(chats.at) + 60_000_000,),
        (micros_of(chats.at) + 30_000_000,),
    ]


def test_erased_chat_leaves_the_cache(chats: Chats) -> None:
    """Its facts may still hold the arguments of calls whose rows are blank."""
    chats.live("chat", plans.send("hello"))
    (said,) = queries.history(chats.on, "chat", at_version=None, after=0)
    erasing = Erasing(messages=(replace(said, parts=(), erased=True),))
    chats.change("chat", plans.move(MessageErased(erasing=erasing)), plans.move(Renamed(title="x")))
    assert chats.cache.get("chat") is None


# Commits on what is remembered


def test_cached_chat_is_changed_without_a_read(chats: Chats) -> None:
    chats.live("chat")
    chats.at = NOON + timedelta(hours=1)
    asked: list[str] = []
    chats.on.set_trace_callback(asked.append)
    committed = at_once(chats.optimistic.change("chat", plans.plan(plans.send("hello")), ()))
    assert (committed.at, committed.facts.version) == (chats.at, 2)
    assert {event.at for event in committed.events} == {chats.at}
    again = at_once(chats.optimistic.change("chat", plans.plan(plans.claim(), plans.start()), ()))
    assert (again.before, again.facts.version) == (committed.facts, 4)
    assert not [sql for sql in asked if sql.lstrip().startswith("SELECT")]


def test_erasure_reads_the_rows(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"))
    (message,) = queries.history(chats.on, "chat", at_version=None, after=0)
    blank = replace(message, parts=(), erased=True)
    before = list(chats.on.iterdump())
    erase = plans.plan(plans.move(MessageErased(erasing=Erasing(messages=(blank,)))))
    assert at_once(chats.optimistic.change("chat", erase, ())) is None
    assert list(chats.on.iterdump()) == before


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE chats SET event_seq = event_seq + 1",
        "UPDATE chats SET head = replace(head, substr(head, 1, 1), 'x')",
        "UPDATE chats SET version = version + 1",
        "UPDATE chats SET state = 'lost'",
        "UPDATE chats SET facts = facts || ' '",
        "UPDATE leases SET token = token + 1",
        "DELETE FROM leases",
    ],
)
def test_changed_row_defeats_the_cache(chats: Chats, sql: str) -> None:
    chats.live("chat", plans.send("hello"), plans.claim())
    chats.sql(sql)
    before = list(chats.on.iterdump())
    assert at_once(chats.optimistic.change("chat", plans.plan(plans.send("more")), ())) is None
    assert list(chats.on.iterdump()) == before
