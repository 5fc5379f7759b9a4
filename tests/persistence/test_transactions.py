"""Transactions on SQLite by themselves: what they read before they write, whom they claim, and what they refuse."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from support.sqlite_chats import NOON, Chats, at_once
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sqlite import queries
from turnwise.persistence.sqlite.write_rows import contradiction
from turnwise.states.arguments import Erasing
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatNotFound, ChatUnreadable, StaleLease, StoreError
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import MessageErased, Released, Renamed


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


def claimed(chats: Chats, limit: int = 9) -> list[str]:
    found = chats.transactions.claim(chats.on, plans.plan(plans.claim()), plans.RUNS, limit)
    return [committed.facts.chat_id for committed in found]


def test_a_chat_is_created_once_and_only_if_something_is_decided(chats: Chats) -> None:
    chats.create("chat", plans.idle)
    assert chats.sql("SELECT * FROM chats") == []
    chats.live("chat")
    assert chats.sql("SELECT since FROM chats") == [(micros_of(NOON),)]
    with pytest.raises(StoreError, match="'chat' in this store already"):
        chats.live("chat")


def test_a_chat_that_is_not_there_cannot_be_changed(chats: Chats) -> None:
    for act in (
        lambda: chats.change("none", plans.send("hello")),
        lambda: chats.transactions.journal(chats.on, "none", 1, ChatState.streaming, ()),
        lambda: chats.transactions.repair(chats.on, "none", plans.idle),
    ):
        with pytest.raises(ChatNotFound):
            act()


@pytest.mark.parametrize("shown", [(), (part("hi"),)])
def test_a_journal_belongs_to_the_holder_in_the_state_that_it_knows(chats: Chats, shown: Sequence[Any]) -> None:
    chats.live("chat", plans.send("hello"), plans.claim(), plans.start())
    for token, state in ((2, ChatState.streaming), (1, ChatState.compacting)):
        with pytest.raises(StaleLease):
            chats.transactions.journal(chats.on, "chat", token, state, shown)
    before = chats.sql("SELECT event_seq FROM chats")[0][0]
    events = chats.transactions.journal(chats.on, "chat", 1, ChatState.streaming, shown)
    assert [event.seq for event in events] == [before + 1] * len(shown)
    assert chats.sql("SELECT event_seq FROM chats") == [(before + len(shown),)]
    assert chats.sql("SELECT max(seq) FROM events") == [(before + len(shown),)]
    assert at_once(chats.optimistic.change("chat", plans.plan(plans.send("more")), ())) is not None, "it is remembered"
    chats.sql("UPDATE chats SET event_seq = 'poison'")
    with pytest.raises(ChatUnreadable, match=r"chats\.event_seq"):
        chats.transactions.journal(chats.on, "chat", 1, ChatState.streaming, shown)


@pytest.mark.parametrize(
    ("column", "value"), [("event_seq", "poison"), ("event_seq", -1), ("head", "poison"), ("head", 5)]
)
def test_a_change_reads_what_it_goes_on_from(chats: Chats, column: str, value: object) -> None:
    chats.live("chat")
    chats.sql(f"UPDATE chats SET {column} = ?", value)  # noqa: S608 - two names
    with pytest.raises(ChatUnreadable, match=rf"chats\.{column}") as caught:
        chats.change("chat", plans.send("hello"))
    assert caught.value.chat_id == "chat"
    assert chats.sql("SELECT version FROM chats") == [(1,)]


@pytest.mark.parametrize(
    ("sql", "seen"),
    [
        ("UPDATE chats SET facts = json_set(facts, '$.serial', 500)", lambda facts: facts.serial == 500),
        ("UPDATE chats SET state = 'lost'", lambda facts: facts.stored_state == "lost"),
        ("UPDATE leases SET token = 7", lambda facts: facts.lease.token == 7),
        ("DELETE FROM leases", lambda facts: facts.lease is None),
        ("UPDATE chats SET version = 7", lambda facts: facts.version == 7),
        ("UPDATE chats SET event_seq = 77", lambda facts: facts.last_seq == 77),
    ],
)
def test_what_others_have_changed_is_seen(chats: Chats, sql: str, seen: Any) -> None:
    """Whatever this process remembers of the chat."""
    chats.live("chat", plans.send("hello"), plans.claim())
    found: list[Facts] = []

    def look(facts: Facts, _now: datetime) -> Sequence[Decision]:
        found.append(facts)
        return []

    chats.transactions.change(chats.on, "chat", look, ())
    assert found[0] == queries.facts(chats.on, "chat")
    chats.sql(sql)
    chats.transactions.change(chats.on, "chat", look, ())
    assert seen(found[1])
    chats.cache.forget("chat")
    chats.transactions.change(chats.on, "chat", look, ())
    assert found[1] == found[2]


def test_those_that_wait_longest_are_claimed_first_and_no_more_than_asked_for(chats: Chats) -> None:
    for number, chat_id in enumerate("cabd"):
        chats.at = NOON + timedelta(seconds=number)
        chats.live(chat_id, plans.send("hello"))
    assert claimed(chats, 0) == []
    assert claimed(chats, 1) == ["c"]
    assert claimed(chats, 2) == ["a", "b"]
    assert claimed(chats) == ["d"]
    assert claimed(chats) == []


def test_chats_that_waited_equally_long_are_all_claimed(chats: Chats) -> None:
    for chat_id in "abc":
        chats.live(chat_id, plans.send("hello"))
    chats.sql("UPDATE chats SET since = 0")
    assert [claimed(chats, 1), claimed(chats, 1), claimed(chats, 1)] == [["a"], ["b"], ["c"]]


def test_a_chat_that_cannot_be_claimed_is_left_alone_for_a_while(
    chats: Chats, caplog: pytest.LogCaptureFixture
) -> None:
    for chat_id in "abc":
        chats.live(chat_id, plans.send("hello"))
    chats.sql("UPDATE chats SET facts = 'poison' WHERE id = 'a'")
    assert claimed(chats, 2) == ["b", "c"]
    assert sum("claim_refused" in record.getMessage() for record in caplog.records) == 1
    assert claimed(chats) == []
    chats.sql("DELETE FROM leases")
    assert chats.sql("SELECT version FROM chats WHERE id = 'a'") == [(2,)]


def test_a_plan_that_refuses_one_chat_keeps_no_other_from_being_claimed(chats: Chats) -> None:
    for chat_id in "abc":
        chats.live(chat_id, plans.send("hello"))

    def picky(facts: Facts, now: datetime) -> Sequence[Decision]:
        if facts.chat_id == "b":
            raise ValueError("not this one")
        return [] if facts.chat_id == "c" else plans.plan(plans.claim())(facts, now)

    found = chats.transactions.claim(chats.on, picky, plans.RUNS, 9)
    assert [committed.facts.chat_id for committed in found] == ["a"]
    assert claimed(chats) == ["b", "c"]


def refused(_facts: Facts, _now: datetime) -> Sequence[Decision]:
    raise ValueError("not this one")


def test_a_claim_that_fails_half_way_leaves_its_chat_as_it_was(chats: Chats) -> None:
    for chat_id in "ab":
        chats.live(chat_id, plans.send("hello"))
    taken = "INSERT INTO events (chat_id, seq, kind, body) SELECT id, event_seq + 1, 'status', '{}' FROM chats"
    chats.sql(f"{taken} WHERE id = 'a'")
    before = chats.sql("SELECT * FROM chats WHERE id = 'a'")
    assert claimed(chats) == ["b"]
    assert chats.sql("SELECT * FROM chats WHERE id = 'a'") == before
    assert chats.sql("SELECT chat_id FROM leases") == [("b",)]
    assert not chats.on.in_transaction


def test_a_claim_in_a_transaction_that_the_database_gave_up_is_told_why(chats: Chats) -> None:
    chats.live("a", plans.send("hello"))

    def give_up(_facts: Facts, _now: datetime) -> Sequence[Decision]:
        chats.sql("ROLLBACK")
        raise sqlite3.OperationalError("the disk is full")

    with pytest.raises(sqlite3.OperationalError, match="the disk is full"):
        chats.transactions.claim(chats.on, give_up, plans.RUNS, 9)
    assert claimed(chats) == ["a"]


def test_a_chat_that_was_claimed_and_is_refused_again_is_logged_again(
    chats: Chats, caplog: pytest.LogCaptureFixture
) -> None:
    chats.live("a", plans.send("hello"))
    for _ in range(2):
        assert chats.transactions.claim(chats.on, refused, plans.RUNS, 9) == []
    assert caplog.text.count("claim_refused chat_id=a") == 1
    assert claimed(chats) == ["a"]
    chats.change("a", plans.move(Released(token=plans.HOLDER)))
    assert chats.transactions.claim(chats.on, refused, plans.RUNS, 9) == []
    assert caplog.text.count("claim_refused chat_id=a") == 2


def test_a_worker_renews_its_own_leases_from_now(chats: Chats) -> None:
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


def test_a_repair_that_decides_nothing_writes_nothing(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"))
    chats.sql("UPDATE messages SET body = 'poison'")
    committed = chats.transactions.repair(chats.on, "chat", plans.idle)
    assert (committed.decisions, committed.at) == ((), NOON)
    assert chats.sql("SELECT * FROM quarantine") == []
    assert chats.sql("SELECT body FROM messages") == [("poison",)]


def test_every_commit_stores_where_the_chat_stands(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"), plans.claim(), plans.start(), plans.send("queued"))
    facts = chats.change("chat", plans.move(Renamed(title="x")), plans.move(Renamed(title="y")))
    chats.cache.forget("chat")
    assert queries.facts(chats.on, "chat") == facts
    assert facts.version == 7
    heads = chats.sql("SELECT lower(hex(hash)) FROM audit ORDER BY version")
    assert chats.sql("SELECT head FROM chats") == heads[-1:]
    assert len(heads) == facts.version
    bodies = [json.loads(body) for (body,) in chats.sql("SELECT body FROM audit")]
    assert not any({"hash", "prev", "chat_id", "version"} & body.keys() for body in bodies), "columns of their own"


def test_a_chat_of_which_something_was_erased_is_remembered_no_more(chats: Chats) -> None:
    """Its facts may still hold the arguments of calls whose rows are blank."""
    chats.live("chat", plans.send("hello"))
    (said,) = queries.history(chats.on, "chat", at_version=None, after=0)
    erasing = Erasing(messages=(replace(said, parts=(), erased=True),))
    chats.change("chat", plans.move(MessageErased(erasing=erasing)), plans.move(Renamed(title="x")))
    assert chats.cache.get("chat") is None


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("UNIQUE constraint failed: events.chat_id, events.seq", "events.seq"),
        ("UNIQUE constraint failed: audit.version", "audit.version"),
        ("FOREIGN KEY constraint failed", "chats"),
    ],
)
def test_a_contradiction_is_told_at_its_place(text: str, column: str) -> None:
    error = contradiction("chat", sqlite3.IntegrityError(text))
    assert (error.chat_id, error.column) == ("chat", column)
    assert text in error.problem


@pytest.mark.parametrize("garbled", ["poison", b"\xff", 1.5, -1])
def test_a_chat_whose_time_is_garbled_keeps_no_other_from_being_claimed(chats: Chats, garbled: object) -> None:
    for chat_id in ("bad", "good", "fine"):
        chats.live(chat_id, plans.send("hello"))
    chats.sql("UPDATE chats SET since = ? WHERE id = 'bad'", garbled)
    claimed = chats.transactions.claim(chats.on, plans.plan(plans.claim()), plans.RUNS, 10)
    assert {"good", "fine"} <= {commit.facts.chat_id for commit in claimed}
