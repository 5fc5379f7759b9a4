"""The examination of a chat: a sound one has no problem at any moment, and each damage is told at its place."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from support.raw_life import CHAT, damaged, moments, where, without
from turnwise.persistence.repair.examine import Finding, blamed, examine
from turnwise.persistence.repair.raw_chat import Rows
from turnwise.persistence.stored_chat import Flaw
from turnwise.states.names import ChatState

pytestmark = pytest.mark.anyio

BODIES: Final = ("profiles", "messages", "calls", "queue", "receipts", "usage", "events", "partial_events")
GARBAGE: Final = ("poison", "{}", "[]", "", 5, b"\xff\x00")
DIFFERING: Final[dict[str, dict[str, Any]]] = {
    "messages": {"position": 77, "id": "m77", "role": "system", "turn": 77, "step": 77, "audience": "user"},
    "calls": {"call_id": "other", "step": 77, "idx": 77, "status": "cancelled"},
    "queue": {"id": "other"},
    "receipts": {"client_id": "other"},
    "partial_events": {"kind": "retry", "step": 77, "attempt": 77},
}
"""Values of the right kind that a row's body does not repeat."""


async def _lived(url: str) -> Rows:
    return (await moments(url))[-1][0]


def _told(rows: Rows) -> set[str]:
    return {f"{found.table}.{found.column}" for found in examine(CHAT, rows)}


def _problem(rows: Rows, place: str) -> str:
    return next(found.problem for found in examine(CHAT, rows) if f"{found.table}.{found.column}" == place)


async def test_a_sound_chat_has_no_problem_at_any_moment(either_url: str) -> None:
    for rows, facts in await moments(either_url):
        assert examine(CHAT, rows) == [], facts.version


async def test_a_body_that_is_none_is_told_at_its_row_and_nowhere_else(either_url: str) -> None:
    rows = await _lived(either_url)
    for table in BODIES:
        for number, row in enumerate(rows.get(table, ())):
            for garbage in GARBAGE:
                found = examine(CHAT, damaged(rows, table, number, body=garbage))
                named = [(one.table, one.column) for one in found]
                if garbage == "{}":  # an event of which the columns say all, a profile without an owner
                    assert (table == "events" and not found) or (table, "body") in named, (row, garbage, found)
                    continue
                assert named == [(table, "body")], (row, garbage, found)
                wrong = {**row, "body": garbage}
                assert found[0].row == wrong, (row, garbage)


async def test_a_column_that_the_body_does_not_repeat_is_told(either_url: str) -> None:
    rows = await _lived(either_url)
    for table, columns in DIFFERING.items():
        for column, value in columns.items():
            if rows.get(table):
                assert f"{table}.{column}" in _told(damaged(rows, table, **{column: value})), (table, column)


async def test_a_deadline_is_held_against_the_call(either_url: str) -> None:
    rows = next(rows for rows, facts in await moments(either_url) if facts.state is ChatState.requires_action)
    (call,) = rows["calls"]
    late = call["deadline"]
    assert late is not None
    other = late + 1 if isinstance(late, int) else late.replace(year=late.year + 1)
    for deadline in (other, None):
        assert _told(damaged(rows, "calls", deadline=deadline)) == {"calls.deadline"}


async def test_an_event_is_held_against_its_columns_and_its_message(either_url: str) -> None:
    rows = await _lived(either_url)
    said = where(rows, "events", kind="message")
    assert _told(damaged(rows, "events", said, kind="turn_finished")) & {"events.kind", "events.body"}
    if "position" not in rows["events"][said]:
        return  # PostgreSQL keeps an event whole
    assert _told(damaged(rows, "events", said, position=77)) == {"events.position"}
    assert "no such message" in _problem(damaged(rows, "events", said, position=77), "events.position")
    assert _told(damaged(rows, "events", said, position=None)) == {"events.body"}
    assert _told(damaged(rows, "events", said, at="poison")) == {"events.at", "events.body"}
    message = where(rows, "messages", position=rows["events"][said]["position"])
    assert _told(damaged(rows, "messages", message, body="poison")) == {"messages.body"}
    assert _told(damaged(rows, "messages", message, format=99)) == {"messages.format"}
    shown = where(rows, "events", kind="part")
    for column in ("step", "attempt"):
        assert _told(damaged(rows, "events", shown, **{column: 77})) == {f"events.{column}"}


async def test_where_a_chat_stands_is_held_against_everything_else(either_url: str) -> None:
    rows = await _lived(either_url)
    chat = rows["chats"][0]
    later = chat["since"] + 1 if isinstance(chat["since"], int) else chat["since"].replace(year=2001)
    for values, place, word in (
        ({"state": "lost"}, "state", "'lost' is no state"),
        ({"state": "waiting"}, "state", "promise"),
        ({"owner": "bob"}, "owner", "profile"),
        ({"owner": None}, "owner", "profile"),
        ({"agent": "support"}, "agent", "profile"),
        ({"needs": ["listen"]}, "needs", "open calls"),
        ({"since": later}, "since", "facts"),
        ({"event_seq": chat["event_seq"] - 1}, "event_seq", f"number {chat['event_seq']}"),
        ({"version": chat["version"] + 1}, "version", f"{chat['version']} records"),
        ({"version": chat["version"] - 1}, "version", f"{chat['version']} records"),
        ({"head": "f" * 64}, "head", "last record"),
        ({"settled": 2}, "settled", "0 or 1"),
        ({"event_seq": -1}, "event_seq", "count"),
    ):
        broken = damaged(rows, "chats", **values)
        found = [one for one in examine(CHAT, broken) if (one.table, one.column) == ("chats", place)]
        assert len(found) == 1, values
        assert word in found[0].problem, values
        assert found[0].row == broken["chats"][0]
    assert "count" in _problem(damaged(rows, "chats", version="poison"), "chats.version")
    assert _told(damaged(rows, "chats", event_seq=chat["event_seq"] + 1)) == set()
    assert "'" not in _problem(damaged(rows, "chats", state="waiting"), "chats.state")


async def test_a_row_that_is_missing_is_told(either_url: str) -> None:
    rows = await _lived(either_url)
    first = damaged(rows, "messages", 0)
    gap = without(first, "messages", where(first, "messages", position=2))
    assert "messages.position" in _told(gap)
    assert "1 message(s) are missing, first number 2" in _problem(gap, "messages.position")
    assert _told(without(rows, "profiles")) == {"profiles.body"}
    assert _problem(without(rows, "profiles"), "profiles.body") == "the row is missing"
    (found,) = examine(CHAT, without(rows, "calls", where(rows, "calls", call_id="b")))
    assert (found.table, found.column, found.row) == ("calls", "call_id", rows["chats"][0])
    body = "chats.facts" if "facts" in rows["chats"][0] else "facts.body"
    table, _, column = body.partition(".")
    for garbage in ("poison", "[]"):
        assert body in _told(damaged(rows, table, **{column: garbage}))
    (found,) = [one for one in examine(CHAT, damaged(rows, table, **{column: "poison"})) if one.column == column]
    assert found.row == damaged(rows, table, **{column: "poison"})[table][0]
    for ended in ("leases", "audit", "queue"):
        if rows.get(ended):
            assert _told({**rows, ended: []}) >= {
                {"leases": "chats.state", "audit": "chats.version"}.get(ended, "x")
            } - {"x"}


async def test_a_lease_that_is_none_is_told_where_it_stands(either_url: str) -> None:
    rows = await _lived(either_url)
    table = "leases" if "leases" in rows else "chats"
    for column, garbage in (("worker", b"\xff"), ("worker", 1), ("token", "poison"), ("token", -1)):
        found = examine(CHAT, damaged(rows, table, **{column: garbage}))
        assert [(one.table, one.column) for one in found] == [(table, column)]
        assert found[0].row == damaged(rows, table, **{column: garbage})[table][0]


async def test_the_records_of_a_log_follow_one_another(either_url: str) -> None:
    rows = await _lived(either_url)
    count = len(rows["audit"])
    shuffled = {**rows, "audit": rows["audit"][::-1]}
    assert _told(shuffled) == set()
    for number in range(count - 1):
        left = without(rows, "audit", number)
        (found,) = [one for one in examine(CHAT, left) if one.column == "version"]
        assert (found.table, found.row) == ("audit", rows["audit"][number + 1])
        assert f"{count - 1} records" in found.problem
    tail = without(rows, "audit")
    assert _told(tail) == {"chats.version", "chats.head"}
    twice = {**rows, "audit": [*rows["audit"], rows["audit"][-1]]}
    assert "audit.version" in _told(twice)
    for garbage in ("poison", "[]", "{}", None):
        assert _told(damaged(rows, "audit", where(rows, "audit", version=2), body=garbage)) == {"audit.body"}
        assert _told(damaged(rows, "audit", where(rows, "audit", version=count), body=garbage)) == {"audit.body"}
    poisoned = damaged(rows, "audit", where(rows, "audit", version=3), version="poison")
    assert "audit.version" in _told(poisoned)


async def test_no_flaw_hides_another(either_url: str) -> None:
    rows = await _lived(either_url)
    table = "leases" if "leases" in rows else "chats"
    broken = damaged(damaged(damaged(rows, "calls", body="poison"), "queue", body="poison"), table, token="poison")  # noqa: S106 - no secret
    assert _told(broken) == {"calls.body", "queue.body", f"{table}.token"}


async def test_facts_of_old_say_nothing_of_since(either_url: str) -> None:
    rows = await _lived(either_url)
    table, column = ("chats", "facts") if "facts" in rows["chats"][0] else ("facts", "body")
    body = json.loads(rows[table][0][column])
    del body["since"]
    assert _told(damaged(rows, table, **{column: json.dumps(body)})) == set()


async def test_a_part_among_the_events_is_held_against_what_a_store_keeps_of_it(either_url: str) -> None:
    """PostgreSQL keeps parts in a table of their own: among the events nothing repeats their step."""
    rows = await _lived(either_url)
    table = "partial_events" if "partial_events" in rows else "events"
    body = rows[table][where(rows, table, kind="part")]["body"]
    assert _told(damaged(rows, "events", where(rows, "events", kind="message"), kind="part", body=body)) in (
        set(),
        {"events.body"},
        {"events.step", "events.attempt"},
    )


async def test_a_place_is_told_once(either_url: str) -> None:
    """By its last and most telling problem, whoever else saw it."""
    rows = await _lived(either_url)
    for table, values in (
        ("calls", {"step": "poison"}),
        ("chats", {"version": "poison"}),
        ("queue", {"body": "poison"}),
    ):
        places = [(one.table, one.column, one.row) for one in examine(CHAT, damaged(rows, table, **values))]
        assert len([place for place in places if place[0] == table]) == 1, table


def test_a_flaw_names_the_row_by_its_key_and_no_longer_than_needed() -> None:
    found = Finding("usage", {"version": 3, "number": 0, "body": "{}"}, "body", "it is bad")
    assert found.flaw == Flaw("usage.body", "version 3, number 0: it is bad")
    assert Finding("chats", {"id": "chat"}, "state", "it is bad").flaw == Flaw("chats.state", "it is bad")
    assert Finding("workers", {}, "name", "it is bad").flaw == Flaw("workers.name", "it is bad")
    long = Finding("calls", {"call_id": "x" * 500}, "body", "it is bad").flaw.problem
    assert len(long) < 100
    assert long.endswith(": it is bad")


async def test_what_could_not_be_read_is_blamed_on_the_first_problem(either_url: str) -> None:
    rows = await _lived(either_url)
    broken = damaged(damaged(rows, "messages", body="poison"), "chats", owner="bob")
    error = blamed(CHAT, broken, ValueError("it went wrong"))
    assert (error.column, error.chat_id) == ("messages.body", CHAT)
    for known in (rows, {"chats": [{}]}):
        error = blamed(CHAT, known, ValueError("it went wrong"))
        assert (error.column, error.chat_id) == ("chats", CHAT)
        assert "it went wrong" in error.problem
