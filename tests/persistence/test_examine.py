"""The examination of a chat: none of its valid moments has a problem, and each damage is located."""

from typing import Any, Final

import pytest
from tests.persistence.raw_life import CHAT, damaged, moments, where, without

from turnwise.persistence.chat_rows import Rows
from turnwise.persistence.integrity.examine import examine
from turnwise.states.names import ChatState

BODIES: Final = ("profiles", "messages", "calls", "queue", "receipts", "usage", "events", "partial_events")
GARBAGE: Final = ("poison", "{}", "[]", "", 5, b"\xff\x00")
DIFFERING: Final[dict[str, dict[str, Any]]] = {
    "messages": {"position": 77, "id": "m77", "role": "system", "turn": 77, "step": 77, "audience": "user"},
    "calls": {"call_id": "other", "step": 77, "idx": 77, "status": "cancelled"},
    "queue": {"id": "other"},
    "receipts": {"client_id": "other"},
    "partial_events": {"kind": "retry", "step": 77, "attempt": 77},
}
"""Values of the right kind that differ from the row's body."""


async def _lived(url: str) -> Rows:
    return (await moments(url))[-1][0]


def _found(rows: Rows) -> set[str]:
    return {issue.column for _, issue in examine(CHAT, rows)}


def _problem(rows: Rows, place: str) -> str:
    return next(issue.problem for _, issue in examine(CHAT, rows) if issue.column == place)


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_sound_chat_has_no_issues(either_url: str) -> None:
    for rows, facts in await moments(either_url):
        assert examine(CHAT, rows) == [], facts.version


async def test_unreadable_body_is_one_issue_at_its_row(either_url: str) -> None:
    rows = await _lived(either_url)
    for table in BODIES:
        for number, row in enumerate(rows.get(table, ())):
            for garbage in GARBAGE:
                found = examine(CHAT, damaged(rows, table, number, body=garbage))
                named = [issue.column for _, issue in found]
                if garbage == "{}":  # an event of which the columns say all, a profile without an owner
                    assert (table == "events" and not found) or f"{table}.body" in named, (row, garbage, found)
                    continue
                assert named == [f"{table}.body"], (row, garbage, found)
                wrong = {**row, "body": garbage}
                assert found[0][0] == wrong, (row, garbage)


async def test_column_that_differs_from_its_body_is_found(either_url: str) -> None:
    rows = await _lived(either_url)
    for table, columns in DIFFERING.items():
        for column, value in columns.items():
            if rows.get(table):
                found = _found(damaged(rows, table, **{column: value}))
                assert f"{table}.{'body' if column == 'kind' else column}" in found, (table, column)


async def test_deadline_column_must_match_the_call(either_url: str) -> None:
    rows = next(rows for rows, facts in await moments(either_url) if facts.state is ChatState.requires_action)
    (call,) = rows["calls"]
    late = call["deadline"]
    other = late + 1 if isinstance(late, int) else late.replace(year=late.year + 1)
    for deadline in (other, None):
        assert _found(damaged(rows, "calls", deadline=deadline)) == {"calls.deadline"}


async def test_event_must_match_columns_and_message(either_url: str) -> None:
    rows = await _lived(either_url)
    event = where(rows, "events", kind="message")
    assert _found(damaged(rows, "events", event, kind="turn_finished")) & {"events.kind", "events.body"}
    assert _found(damaged(rows, "events", event, position=77)) == {"events.position"}
    assert "no such message" in _problem(damaged(rows, "events", event, position=77), "events.position")
    assert _found(damaged(rows, "events", event, position=None)) == {"events.body"}
    assert _found(damaged(rows, "events", event, at="poison")) == {"events.at", "events.body"}
    message = where(rows, "messages", position=rows["events"][event]["position"])
    assert _found(damaged(rows, "messages", message, body="poison")) == {"messages.body"}
    assert _found(damaged(rows, "messages", message, format=99)) == {"messages.format"}
    table = "partial_events" if "partial_events" in rows else "events"
    shown = where(rows, table, kind="part")
    for column in ("step", "attempt"):
        assert _found(damaged(rows, table, shown, **{column: 77})) == {f"{table}.{column}"}


async def test_chat_row_must_match_the_other_rows(either_url: str) -> None:
    rows = await _lived(either_url)
    chat = rows["chats"][0]
    later = chat["since"] + 1 if isinstance(chat["since"], int) else chat["since"].replace(year=2001)
    for values, place, word in (
        ({"state": "lost"}, "state", "'lost' is no state"),
        ({"state": "waiting"}, "state", "invariant queue_is_empty"),
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
        found = [one for one in examine(CHAT, broken) if one[1].column == f"chats.{place}"]
        assert len(found) == 1, values
        assert word in found[0][1].problem, values
        assert found[0][0] == broken["chats"][0]
    assert "count" in _problem(damaged(rows, "chats", version="poison"), "chats.version")
    assert _found(damaged(rows, "chats", event_seq=chat["event_seq"] + 1)) == set()
    assert "'" not in _problem(damaged(rows, "chats", state="waiting"), "chats.state")


async def test_missing_rows_are_found(either_url: str) -> None:
    rows = await _lived(either_url)
    first = damaged(rows, "messages", 0)
    gap = without(first, "messages", where(first, "messages", position=2))
    assert "messages.position" in _found(gap)
    assert "1 message(s) are missing, first number 2" in _problem(gap, "messages.position")
    assert _found(without(rows, "profiles")) == {"profiles.body"}
    assert _problem(without(rows, "profiles"), "profiles.body") == "the row is missing"
    ((row, issue),) = examine(CHAT, without(rows, "calls", where(rows, "calls", call_id="b")))
    assert (row, issue.column) == (rows["chats"][0], "calls.call_id")
    body = "chats.facts" if "facts" in rows["chats"][0] else "facts.body"
    table, _, column = body.partition(".")
    for garbage in ("poison", "[]"):
        assert body in _found(damaged(rows, table, **{column: garbage}))
    (row,) = [row for row, issue in examine(CHAT, damaged(rows, table, **{column: "poison"})) if issue.column == body]
    assert row == damaged(rows, table, **{column: "poison"})[table][0]
    for ended in ("leases", "audit", "queue"):
        if rows.get(ended):
            assert _found({**rows, ended: []}) >= {
                {"leases": "chats.state", "audit": "chats.version"}.get(ended, "x")
            } - {"x"}


async def test_invalid_lease_is_found(either_url: str) -> None:
    rows = await _lived(either_url)
    table = "leases" if "leases" in rows else "chats"
    for column, garbage in (("worker", b"\xff"), ("worker", 1), ("token", "poison"), ("token", -1)):
        found = examine(CHAT, damaged(rows, table, **{column: garbage}))
        assert [issue.column for _, issue in found] == [f"{table}.{column}"]
        assert found[0][0] == damaged(rows, table, **{column: garbage})[table][0]


async def test_gaps_and_garbage_in_the_log_are_found(either_url: str) -> None:
    rows = await _lived(either_url)
    count = len(rows["audit"])
    shuffled = {**rows, "audit": rows["audit"][::-1]}
    assert _found(shuffled) == set()
    for number in range(count - 1):
        left = without(rows, "audit", number)
        ((row, issue),) = [one for one in examine(CHAT, left) if one[1].column == "audit.version"]
        assert row == rows["audit"][number + 1]
        assert f"{count - 1} records" in issue.problem
    tail = without(rows, "audit")
    assert _found(tail) == {"chats.version", "chats.head"}
    twice = {**rows, "audit": [*rows["audit"], rows["audit"][-1]]}
    assert "audit.version" in _found(twice)
    for garbage in ("poison", "[]", "{}", None):
        assert _found(damaged(rows, "audit", where(rows, "audit", version=2), body=garbage)) == {"audit.body"}
        assert _found(damaged(rows, "audit", where(rows, "audit", version=count), body=garbage)) == {"audit.body"}
    poisoned = damaged(rows, "audit", where(rows, "audit", version=3), version="poison")
    assert "audit.version" in _found(poisoned)
