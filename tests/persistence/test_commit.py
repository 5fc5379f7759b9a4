"""One commit of several decisions: of all that they write to one row, the row holds what is left in the end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from turnwise.persistence.commit import Tables
from turnwise.states import writes as w
from turnwise.states.facts import Lease, QueuedMessage
from turnwise.states.messages import Message, TextPart
from turnwise.states.usage import Usage

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message(position: int) -> w.InsertMessage:
    parts = (TextPart(text=f"text {position}"),)
    return w.InsertMessage(
        Message(id=f"m{position}", role="user", parts=parts, turn=1, step=1, created_at=NOW, position=position)
    )


def boundary(position: int) -> w.InsertBoundary:
    return w.InsertBoundary("requested", 1, position, ())


def tables_of(*writes: w.Write) -> Tables:
    """Return the rows of writes, each of a version of its own."""
    tables = Tables("chat", NOW)
    for version, write in enumerate(writes, start=1):
        tables.add(write, version, 0)
    return tables


@pytest.mark.parametrize("table", ["messages", "boundaries"])
def test_a_row_is_cut_once_by_the_first_that_cuts_it(table: str) -> None:
    """As of the version between two cuts, what only the second one cut is still there."""
    make = message if table == "messages" else boundary
    found = tables_of(
        make(1), make(2), make(3), w.CutHistory(3, "m3"), w.CutHistory(2, "m2"), make(2), w.CutHistory(2, "m2"), make(4)
    ).rows
    assert [(row["position"], row["cut"]) for row in found[table]] == [(1, None), (2, 5), (3, 4), (2, 7), (4, None)]
    assert [(cut["position"], cut["version"]) for cut in found["cuts"]] == [(3, 4), (2, 5), (2, 7)]


def queued(text: str, rank: int | None) -> w.PutQueued:
    return w.PutQueued(QueuedMessage(id="q1", parts=(TextPart(text=text),), accepted_at=NOW), rank)


def test_a_queued_message_keeps_its_rank_unless_it_is_given_another() -> None:
    assert [row["rank"] for row in tables_of(queued("a", 3), queued("b", None)).queued] == [3]
    assert [row["rank"] for row in tables_of(queued("a", 3), queued("b", 4)).queued] == [4]
    assert [row["rank"] for row in tables_of(queued("a", None)).queued] == [None]
    found = tables_of(queued("first words", 3), queued("last words", None)).queued
    assert "last words" in found[0]["body"]


def test_a_queued_message_that_was_taken_is_dropped_unless_it_comes_back() -> None:
    dropped = w.DropQueued("q1", "taken")
    found = tables_of(queued("a", 1), dropped)
    assert (found.queued, [row["id"] for row in found.dropped]) == ([], ["q1"])
    found = tables_of(queued("a", 1), dropped, queued("b", None))
    assert (found.dropped, [row["rank"] for row in found.queued]) == ([], [None])


def test_a_lease_is_the_one_that_was_granted_last() -> None:
    first, second = (w.GrantLease(Lease(worker="w", token=token), 30) for token in (1, 2))
    assert tables_of(first, w.DropLease(1), second).lease is second
    assert tables_of(w.DropLease(1)).lease is None


def test_every_row_says_whose_it_is_and_usage_which_write_of_which_version() -> None:
    tables = Tables("chat", NOW)
    usage = w.RecordUsage("step", 1, 1, 1, Usage(input_tokens=3))
    tables.add(usage, 4, 1)
    tables.add(usage, 4, 2)
    assert [(row["chat_id"], row["version"], row["number"]) for row in tables.rows["usage"]] == [
        ("chat", 4, 1),
        ("chat", 4, 2),
    ]
