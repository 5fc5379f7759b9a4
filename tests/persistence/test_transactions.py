"""Transactions on SQLite by themselves: what they read before they write, whom they claim, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.persistence.sqlite_chats import NOON, Chats, at_once

from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.rows import micros_of
from turnwise.persistence.sqlite import queries
from turnwise.states.arguments import Erasing
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatUnreadable, StaleLease
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import MessageErased, Renamed


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


def claimed(chats: Chats, limit: int = 9) -> list[str]:
    found = chats.transactions.claim(chats.on, plans.plan(plans.claim()), plans.RUNS, limit)
    return [committed.facts.chat_id for committed in found]


@pytest.mark.parametrize("shown", [(), (part("hi"),)])
def test_journal_needs_token_and_state(chats: Chats, shown: Sequence[Any]) -> None:
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
def test_change_refuses_garbled_columns(chats: Chats, column: str, value: object) -> None:
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
def test_plan_sees_foreign_changes_despite_the_cache(chats: Chats, sql: str, seen: Any) -> None:
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


def test_unreadable_chat_is_skipped_for_a_while(chats: Chats, caplog: pytest.LogCaptureFixture) -> None:
    for chat_id in "abc":
        chats.live(chat_id, plans.send("hello"))
    chats.sql("UPDATE chats SET facts = 'poison' WHERE id = 'a'")
    assert claimed(chats, 2) == ["b", "c"]
    assert sum("claim_refused" in record.getMessage() for record in caplog.records) == 1
    assert claimed(chats) == []
    chats.sql("DELETE FROM leases")
    assert chats.sql("SELECT version FROM chats WHERE id = 'a'") == [(2,)]


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
