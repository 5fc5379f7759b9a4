"""What belongs in a column: every kind of value that turnwise stores there fits, and no other does."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from pydantic import TypeAdapter

from turnwise.persistence.repair.columns import COLUMNS, misfits
from turnwise.states.events import Event

NOW: Final = datetime(2026, 11, 22, tzinfo=UTC)
ASIDE: Final = json.dumps({"events": "0f", "reason": "because", "salt": "f0"})
NOTHING: Final = (None,)
"""What an optional column may hold besides."""

KINDS: Final[dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]]] = {
    "a count": ("count", (0, 1, 2**62 - 1), (-1, 2**62, True, "1", 1.0, b"1")),
    "a truth": ("0 or 1", (0, 1, False, True), (2, -1, "0", "poison", b"\x01")),
    "a word": ("text", ("streaming", "a worker", ""), (1, b"streaming", "two\nlines", "\x00", 1.5)),
    "a label": ("text", ("ann", "two\nlines", ""), (1, b"ann", 1.5)),
    "a time": ("time", (NOW, 0, 1_700_000_000_000_000), (-1, True, "2026-11-22", 10**30, 1.5, b"")),
    "a hash": ("SHA-256", ("0123456789abcdef" * 4,), ("a" * 63, "a" * 65, "g" * 64, "A" * 64, b"a" * 64, 1)),
    "a digest": ("SHA-256", (bytes(32),), (bytes(31), bytes(33), "a" * 32, 32)),
    "a salt": ("hex", ("", "0f" * 16), ("poison", "0F", b"0f", 1)),
    "an aside": ("record", (None, ASIDE), ("poison", "{}", "[]", 1, b"{}")),
    "call ids": ("call ids", ("[]", '["a", "b"]', ["a"], b'["a"]'), ("[1]", "{}", "poison", [1], 1, b"\xff")),
    "tools": ("tools' names", ("[]", '["a", "b"]', ["a"]), ("[1]", "{}", "poison", [1], 1, b"\xff")),
    "positions": ("positions", ("[]", "[1, 2]", [1, 2]), ('["1"]', "{}", "poison", [1.0], [True], 1, b"\xff")),
    "a reason": ("compaction", ("clear", "compaction"), ("poison", "", 1)),
    "an answerer": ("helpers", ("client", "helpers", "both"), ("poison", "", 1, b"both")),
    "a rank": ("whole number", (-1, 0, 7), (True, "1", 1.5, b"1")),
    "an event": ("event", ("part", "turn_finished", "message"), ("poison", "", 1, b"part")),
}
"""For each kind of column: a word by which it is told, what fits, and what does not."""

PLACES: Final = {
    "chats.state": "a word",
    "chats.settled": "a truth",
    "chats.archived": "a truth",
    "chats.version": "a count",
    "chats.event_seq": "a count",
    "chats.head": "a hash",
    "chats.since": "a time",
    "chats.rested": "a time?",
    "chats.owner": "a label?",
    "chats.calls": "call ids",
    "chats.agent": "a label",
    "chats.needs": "tools",
    "chats.awaits": "an answerer?",
    "chats.worker": "a word?",
    "chats.token": "a count?",
    "chats.expires": "a time?",
    "chats.salt": "a salt?",
    "profiles.salt": "a salt?",
    "facts.salt": "a salt?",
    "messages.salt": "a salt?",
    "messages.position": "a count",
    "messages.added": "a count",
    "messages.cut": "a count?",
    "messages.digest": "a hash",
    "messages.erased": "a truth",
    "boundaries.position": "a count",
    "boundaries.reason": "a reason",
    "boundaries.step": "a count",
    "boundaries.carried": "positions",
    "boundaries.cut": "a count?",
    "calls.step": "a count",
    "calls.idx": "a count",
    "calls.deadline": "a time?",
    "queue.salt": "a salt?",
    "queue.rank": "a rank",
    "leases.worker": "a word",
    "leases.token": "a count",
    "leases.expires": "a time",
    "leases.lasts": "a count",
    "usage.version": "a count",
    "usage.number": "a count",
    "chat_files.digest": "a hash",
    "chat_files.size": "a count",
    "chat_files.sent": "a truth",
    "chat_files.at": "a time",
    "audit.version": "a count",
    "audit.aside": "an aside",
    "audit.hash": "a digest",
    "events.kind": "an event",
    "events.seq": "a count",
    "events.at": "a time",
    "events.step": "a count?",
    "events.attempt": "a count?",
    "events.position": "a count?",
    "partial_events.kind": "an event",
    "partial_events.seq": "a count",
    "partial_events.at": "a time",
}
"""The kind of every column that can be judged by itself; `?` where it may be empty."""


@pytest.mark.parametrize("place", PLACES)
def test_a_column_holds_its_kind_and_no_other(place: str) -> None:
    table, _, column = place.partition(".")
    kind, optional = PLACES[place].rstrip("?"), PLACES[place].endswith("?")
    word, fits, not_ = KINDS[kind]
    for value in (*fits, *NOTHING * optional):
        assert list(misfits(table, {column: value})) == [], value
    for value in (*not_, *NOTHING * (not optional and None not in fits)):
        ((named, problem),) = misfits(table, {column: value})
        assert named == column
        assert word in problem
        assert problem.endswith("belongs here")
        assert ("nothing" in problem) is optional


def test_every_column_that_is_judged_has_its_kind_here() -> None:
    assert {f"{table}.{column}" for table, columns in COLUMNS.items() for column in columns} == PLACES.keys()


def test_every_kind_of_event_is_one() -> None:
    known = TypeAdapter(Event).json_schema()["discriminator"]["mapping"]
    assert [kind for kind in known if list(misfits("events", {"kind": kind}))] == []


def test_all_misfits_of_a_row_are_told_and_nothing_is_asked_of_what_a_store_does_not_keep() -> None:
    assert [column for column, _ in misfits("calls", {"step": "poison", "idx": 0, "deadline": b""})] == [
        "step",
        "deadline",
    ]
    assert list(misfits("calls", {"body": 1})) == []
    assert list(misfits("workers", {"name": 1})) == []
