"""Commits on what is remembered: what is proven, what is left to be read first, and what nobody may decide blindly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.persistence.sqlite_chats import NOON, Chats, at_once

from turnwise.persistence.conformance import plans
from turnwise.persistence.sqlite import queries
from turnwise.states.arguments import Erasing
from turnwise.states.triggers import MessageErased


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


def test_cached_chat_is_changed_without_a_read(chats: Chats) -> None:
    chats.live("chat")
    chats.at = NOON + timedelta(hours=1)
    asked: list[str] = []
    chats.on.set_trace_callback(asked.append)
    committed = at_once(chats.optimistic.change("chat", plans.plan(plans.send("hello")), ()))
    assert committed is not None
    assert (committed.at, committed.facts.version) == (chats.at, 2)
    assert {event.at for event in committed.events} == {chats.at}
    again = at_once(chats.optimistic.change("chat", plans.plan(plans.claim(), plans.start()), ()))
    assert again is not None
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
