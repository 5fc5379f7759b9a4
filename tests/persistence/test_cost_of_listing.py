"""Listing chats costs the same for any number of other chats and any rarity of the match. So does a sweep."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import anyio.lowlevel
import asyncpg
import pytest

from turnwise.persistence.postgres.database import PostgresDatabase
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.sql import lists
from turnwise.states.names import ChatState
from turnwise.testing.conformance import plans

FEW, MANY = 100, 5000
QUESTIONS: Final = [
    {"owner": owner, "state": state, "after": after}
    for owner in (None, "everyone", "ann")
    for state in (None, ChatState.error, ChatState.waiting)
    for after in (None, "first-of-many")
]
asked = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: "-".join(map(str, question.values())))


@pytest.mark.deep
@asked
async def test_postgres_listing_reads_no_extra_row(
    question: dict[str, Any], store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """The plan shows how many rows the server read and discarded."""
    found = await _nodes_asked(store, question, beside)
    assert _reads_nothing_in_vain(found), found
    assert not _kinds(found) & {"Sort", "Incremental Sort"}, found
    assert sum(node.get("Shared Hit Blocks", 0) for node in found if node.get("Relation Name") == "chats") <= 12, found
    assert sum(node["Actual Rows"] for node in found if node.get("Relation Name") == "chats") <= 6, found


async def test_postgres_counts_chats_at_work_along_an_index(store: PostgresStore, beside: asyncpg.Connection) -> None:
    """It reads the held chats, skips the waiting ones, and sorts nothing."""
    for number in range(3):
        await plans.created(store, f"held-{number}", plans.send("hello"), plans.claim(), owner=f"o{number % 2}")
    await beside.execute(
        "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, owner, calls, fair_key)"
        " SELECT 'c' || n, 'pending', true, false, version, event_seq, head, since, 'everyone', calls, 'everyone'"
        " FROM chats, generate_series(1, $1::int) AS n WHERE id = 'held-0'",
        MANY,
    )
    await beside.execute("ANALYZE")

    found = await _explained(store, lists.at_work)
    assert _reads_nothing_in_vain(found), found
    assert not _kinds(found) & {"Sort", "Incremental Sort", "Bitmap Heap Scan"}, found
    assert [node["Actual Rows"] for node in found if node.get("Index Name") == "chats_leased"] == [3], found


async def _nodes_asked(
    store: PostgresStore, question: dict[str, Any], beside: asyncpg.Connection
) -> list[dict[str, Any]]:
    await plans.created(store, "old", plans.send("hello"), owner="everyone")
    await beside.execute("UPDATE chats SET state = 'error'")
    await beside.execute(
        "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, owner, calls)"
        " SELECT CASE n WHEN 1 THEN 'first-of-many' ELSE 'c' || n END, 'waiting', true, false, version, event_seq,"
        " head, since, 'everyone', calls FROM chats, generate_series(1, $1::int) AS n",
        MANY,
    )
    await beside.execute("UPDATE chats SET owner = 'o' || number WHERE number % 2 = 0 AND id ~ '^c'")
    await beside.execute("ANALYZE")

    return await _explained(store, lambda on: lists.chats(on, **question, limit=5))


async def _explained(store: PostgresStore, ask: Callable[[Any], Awaitable[Any]]) -> list[dict[str, Any]]:
    """Return the plan steps of a query."""

    async def nodes(on: Any) -> list[dict[str, Any]]:
        seen: list[Any] = []
        with on.query_logger(seen.append):
            await ask(PostgresDatabase(on, None))
            await anyio.lowlevel.checkpoint()  # the driver logs the plan later
        return [
            node
            for query in seen
            for node in _nodes(await (await on.prepare(query.query)).explain(*query.args, analyze=True))
        ]

    return await store._pool.run(nodes)


def _reads_nothing_in_vain(found: list[dict[str, Any]]) -> bool:
    """Return whether the steps scan no whole table and discard no row."""
    removed = sum(node.get("Rows Removed by Filter", 0) for node in found)
    return "Seq Scan" not in _kinds(found) and removed == 0


def _kinds(found: list[dict[str, Any]]) -> set[str]:
    return {node["Node Type"] for node in found}


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a plan, except those that collect calls and queue of a found chat."""
    for part in plan if isinstance(plan, list) else [plan]:
        if part.get("Parent Relationship") == "SubPlan":
            continue
        if "Node Type" in part:
            yield {name: value for name, value in part.items() if name != "Plans"}
        yield from _nodes([part["Plan"]] if "Plan" in part else part.get("Plans", []))
