"""Commits on what is remembered: what is proven, what is left to be read first, and what nobody may decide blindly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from support.sqlite_chats import NOON, Chats, at_once
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.sqlite import queries
from turnwise.states.arguments import Erasing
from turnwise.states.names import ChatState
from turnwise.states.triggers import MessageErased


@pytest.fixture
def chats() -> Iterator[Chats]:
    with Chats.in_memory() as chats:
        yield chats


def test_what_is_created_is_told_as_it_is_stored(chats: Chats) -> None:
    nothing = at_once(chats.optimistic.create("chat", plans.idle))
    assert (nothing.decisions, nothing.before, nothing.at) == ((), nothing.facts, NOON)
    made = chats.create("chat", plans.plan(plans.create()))
    assert (made.before.version, made.facts.version, made.at) == (0, 1, NOON)
    assert chats.cache.get("chat") is not None


def test_a_remembered_chat_is_changed_without_being_read_at_the_time_of_the_change(chats: Chats) -> None:
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


def test_a_chat_that_is_not_remembered_or_not_changed_has_to_be_read(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"))
    assert at_once(chats.optimistic.change("chat", plans.idle, ())) is None
    assert at_once(chats.optimistic.change("chat", plans.plan(plans.start()), ())) is None, "refused"
    chats.cache.forget("chat")
    assert at_once(chats.optimistic.change("chat", plans.plan(plans.claim()), ())) is None
    assert chats.sql("SELECT version FROM chats") == [(2,)]


def test_what_erases_is_decided_on_the_rows(chats: Chats) -> None:
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
def test_nothing_is_written_where_anything_differs_from_what_is_remembered(chats: Chats, sql: str) -> None:
    chats.live("chat", plans.send("hello"), plans.claim())
    chats.sql(sql)
    before = list(chats.on.iterdump())
    assert at_once(chats.optimistic.change("chat", plans.plan(plans.send("more")), ())) is None
    assert list(chats.on.iterdump()) == before


def test_parts_are_stored_after_the_last_event_that_is_remembered(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"), plans.claim(), plans.start())
    ((before,),) = chats.sql("SELECT event_seq FROM chats")
    for first in (before + 1, before + 3):
        events = at_once(chats.optimistic.journal("chat", 1, ChatState.streaming, [part("a"), part("b")]))
        assert events is not None
        assert [event.seq for event in events] == [first, first + 1]
    assert chats.sql("SELECT event_seq FROM chats") == [(before + 4,)]
    assert chats.sql("SELECT count(*) FROM events WHERE kind = 'part'") == [(4,)]
    assert at_once(chats.optimistic.change("chat", plans.plan(plans.send("queued")), ())) is not None


@pytest.mark.parametrize(("token", "state"), [(2, ChatState.streaming), (1, ChatState.compacting)])
def test_parts_of_who_does_not_hold_the_chat_are_not_stored(chats: Chats, token: int, state: ChatState) -> None:
    chats.live("chat", plans.send("hello"), plans.claim(), plans.start())
    before = list(chats.on.iterdump())
    assert at_once(chats.optimistic.journal("chat", token, state, [part("a")])) is None
    chats.sql("UPDATE chats SET event_seq = event_seq + 1")
    assert at_once(chats.optimistic.journal("chat", 1, ChatState.streaming, [part("a")])) is None
    chats.sql("UPDATE chats SET event_seq = event_seq - 1")
    assert list(chats.on.iterdump()) == before


def test_whether_a_job_may_go_on_is_asked_of_the_rows(chats: Chats) -> None:
    chats.live("chat", plans.send("hello"), plans.claim(), plans.start())
    assert at_once(chats.optimistic.journal("chat", 1, ChatState.streaming, ())) is None
    chats.cache.forget("chat")
    assert at_once(chats.optimistic.journal("chat", 1, ChatState.streaming, [part("a")])) is None
