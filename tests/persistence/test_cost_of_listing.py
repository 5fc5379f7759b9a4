"""To list chats costs a store the same, however many others it holds, and however rare those are that are wanted.

So does a sweep.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Final

import anyio.lowlevel
import asyncpg
import pytest

from support.sqlite_chats import Chats
from turnwise.persistence.conformance import plans
from turnwise.persistence.postgres import queries as postgres
from turnwise.persistence.postgres import transactions
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.postgres.times import BEFORE_ALL
from turnwise.persistence.sqlite import queries as sqlite
from turnwise.states.names import ChatState

FEW, MANY = 100, 5000
QUESTIONS: Final = [
    {"owner": owner, "state": state, "after": after}
    for owner in (None, "everyone", "ann")
    for state in (None, ChatState.error, ChatState.waiting)
    for after in (None, "first-of-many")
]
asked = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: "-".join(map(str, question.values())))


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(postgres_url)
    await opened.open()
    yield opened
    await opened.close()


@asked
def test_sqlite_reads_no_chat_in_vain(question: dict[str, Any]) -> None:
    """Counted are the instructions of its virtual machine."""
    few, many = (_instructions(count, question) for count in (FEW, MANY))
    assert many <= few * 1.1


@contextmanager
def _counted(on: sqlite3.Connection) -> Iterator[Sized]:
    """Count the instructions of SQLite's virtual machine."""
    steps: list[None] = []
    on.set_progress_handler(lambda: steps.append(None), 1)
    try:
        yield steps
    finally:
        on.set_progress_handler(None, 0)


def _instructions(count: int, question: dict[str, Any]) -> int:
    with Chats.in_memory() as chats:
        for chat_id, owner in (("old", "everyone"), ("older", "ann"), ("first-of-many", "everyone")):
            chats.live(chat_id, plans.send("hello"), owner=owner)
        chats.sql("UPDATE chats SET state = 'error' WHERE id <> 'first-of-many'")
        chats.sql(
            "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?) "
            "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, owner, calls, facts) "
            "SELECT 'c' || n, 'waiting', 1, 0, version, event_seq, head, since, 'everyone', calls, facts "
            "FROM counted, chats WHERE id = 'first-of-many'",
            count,
        )
        with _counted(chats.on) as steps:
            sqlite.chats(chats.on, **question, limit=5)
    return len(steps)


@asked
async def test_postgres_reads_no_chat_in_vain(
    question: dict[str, Any], store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """Seen from its plan, with which it tells how many rows it read and threw away."""
    found = await _nodes_asked(store, question, beside)
    assert _reads_nothing_in_vain(found), found
    assert not _kinds(found) & {"Sort", "Incremental Sort"}, found
    assert sum(node.get("Shared Hit Blocks", 0) for node in found if node.get("Relation Name") == "chats") <= 12, found
    assert sum(node["Actual Rows"] for node in found if node.get("Relation Name") == "chats") <= 6, found


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

    return await _explained(store, lambda on: postgres.chats(on, **question, limit=5))


async def test_a_sweep_of_postgres_reads_no_call_in_vain(store: PostgresStore, beside: asyncpg.Connection) -> None:
    """Neither those without a deadline nor those whose deadline is to come."""
    await beside.execute(
        "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls)"
        " SELECT 'c' || n, 'requires_action', true, false, 1, 0, '', now(), '{}'"
        " FROM generate_series(1, $1::int) AS n",
        MANY,
    )
    await beside.execute(
        "INSERT INTO calls (chat_id, call_id, step, idx, status, deadline, body)"
        " SELECT 'c' || n, n, 1, 0, 'awaiting_client', CASE WHEN n % 2 = 0 THEN now() + interval '1 day' END, '{}'"
        " FROM generate_series(1, $1::int) AS n",
        MANY,
    )
    await beside.execute("ANALYZE")
    found = await _explained(store, lambda on: postgres.overdue(on, now=None, limit=100))
    assert _reads_nothing_in_vain(found), found
    assert sum(node.get("Shared Hit Blocks", 0) for node in found if node.get("Relation Name") == "calls") <= 12, found


@pytest.mark.parametrize("archived", [False, True])
def test_what_is_unchanged_for_long_is_found_in_sqlite_among_any_number_that_is_not(archived: bool) -> None:  # noqa: FBT001
    few, many = (_instructions_to_find_the_rested(count, archived=archived) for count in (FEW, MANY))
    assert many <= few * 1.1


def _instructions_to_find_the_rested(count: int, *, archived: bool) -> int:
    with Chats.in_memory() as chats:
        chats.live("chat", plans.send("hello"))
        chats.sql(
            "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?) "
            "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls, facts, rested) "
            "SELECT 'c' || n, 'waiting', 1, n % 2, version, event_seq, head, since, calls, facts, "
            "CASE WHEN n % 3 THEN 1000 + n ELSE n END FROM counted, chats WHERE id = 'chat'",
            count,
        )
        chats.sql("UPDATE chats SET rested = NULL WHERE rested < 1000 AND number > 20")
        with _counted(chats.on) as steps:
            assert sqlite.rested(chats.on, archived=archived, until=999, limit=5)
    return len(steps)


async def test_what_is_unchanged_for_long_is_found_in_postgres_among_any_number_that_is_not(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await beside.execute(
        "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls, rested)"
        " SELECT 'c' || n, 'waiting', true, n % 2 = 0, 1, 0, '', now(), '{}',"
        " CASE WHEN n < 9 THEN now() - interval '1 day' WHEN n % 3 = 0 THEN now() END"
        " FROM generate_series(1, $1::int) AS n",
        MANY,
    )
    await beside.execute("ANALYZE")
    for archived in (False, True):
        found = await _explained(
            store, lambda on, it=archived: postgres.rested(on, now=None, archived=it, seconds=3600, limit=5)
        )
        assert _reads_nothing_in_vain(found), found
        assert "Sort" not in _kinds(found), found
        assert sum(node["Actual Rows"] for node in found if node.get("Relation Name") == "chats") == 4, found


async def test_no_process_has_to_start_to_help_with_a_query(store: PostgresStore) -> None:
    assert await store._pool.run(lambda on: on.fetchval("SHOW max_parallel_workers_per_gather")) == "0"


async def _explained(store: PostgresStore, ask: Callable[[Any], Awaitable[Any]]) -> list[dict[str, Any]]:
    """Return the steps that the server took for what is asked."""

    async def nodes(on: Any) -> list[dict[str, Any]]:
        seen: list[Any] = []
        with on.query_logger(seen.append):
            await ask(on)
            await anyio.lowlevel.checkpoint()  # the driver tells of it later
        return [
            node
            for query in seen
            for node in _nodes(await (await on.prepare(query.query)).explain(*query.args, analyze=True))
        ]

    return await store._pool.run(nodes)


def _reads_nothing_in_vain(found: list[dict[str, Any]]) -> bool:
    """Whether these steps read no table as a whole, and throw nothing away that they have read."""
    removed = sum(node.get("Rows Removed by Filter", 0) for node in found)
    return "Seq Scan" not in _kinds(found) and removed == 0


def _kinds(found: list[dict[str, Any]]) -> set[str]:
    return {node["Node Type"] for node in found}


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a plan, without those that gather the calls and the queue of a chat that was found."""
    for part in plan if isinstance(plan, list) else [plan]:
        if part.get("Parent Relationship") == "SubPlan":
            continue
        if "Node Type" in part:
            yield {name: value for name, value in part.items() if name != "Plans"}
        yield from _nodes([part["Plan"]] if "Plan" in part else part.get("Plans", []))


def test_a_sweep_of_sqlite_for_chats_that_wait_for_helpers_reads_no_other() -> None:
    """Counted are the instructions of its virtual machine."""
    few, many = (_instructions_of_a_sweep(count) for count in (FEW, MANY))
    assert many <= few * 1.1


def _instructions_of_a_sweep(count: int) -> int:
    with Chats.in_memory() as chats:
        chats.live("mine", plans.send("hello"))
        chats.sql(
            "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?) "
            "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls, facts, awaits) "
            "SELECT 'c' || n, 'requires_action', 1, 0, version, event_seq, head, since, calls, facts, 'client' "
            "FROM counted, chats WHERE id = 'mine'",
            count,
        )
        chats.sql("UPDATE chats SET awaits = 'helpers' WHERE id IN ('c3', 'c40')")
        with _counted(chats.on) as steps:
            assert sqlite.awaiting_helpers(chats.on, after="", limit=5) == ["c3", "c40"]
            assert len(sqlite.chats(chats.on, owner=None, state=None, limit=5, after=None, awaiting="helpers")) == 2
    return len(steps)


async def test_a_sweep_of_postgres_for_chats_that_wait_for_helpers_reads_no_other(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """Nor does the list of them."""
    await beside.execute(
        "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls, awaits)"
        " SELECT 'c' || n, 'requires_action', true, false, 1, 0, '', now(), '{}',"
        " CASE WHEN n % 2500 = 0 THEN 'helpers' ELSE 'client' END"
        " FROM generate_series(1, $1::int) AS n",
        MANY,
    )
    await beside.execute("ANALYZE")
    swept = await _explained(store, lambda on: postgres.awaiting_helpers(on, after="", limit=5))
    listed = await _explained(
        store, lambda on: postgres.chats(on, owner=None, state=None, limit=5, after=None, awaiting="helpers")
    )
    for found in (swept, listed):
        assert _reads_nothing_in_vain(found), found
        assert sum(node["Actual Rows"] for node in found if node.get("Relation Name") == "chats") <= 4, found


async def test_a_claim_of_postgres_reads_no_chat_of_another_agent(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """Nor does the question how long the chats of each agent wait."""
    await beside.execute(
        "INSERT INTO chats (id, state, settled, archived, version, event_seq, head, since, calls, agent)"
        " SELECT 'c' || n, 'pending', true, false, 1, 0, '', now(), '{}',"
        " CASE WHEN n = 2500 THEN 'mine' ELSE 'other' END FROM generate_series(1, $1::int) AS n",
        MANY,
    )
    await beside.execute("ANALYZE")
    claimable = transactions._SQL["claimable"]
    claimed = await _explained(store, lambda on: on.fetch(claimable, ["mine"], [""], BEFORE_ALL, 0, 5))
    asked = await _explained(store, postgres.waiting_since)
    for found in (claimed, asked):
        scans = [node for node in found if node.get("Relation Name") == "chats"]
        assert not [node for node in scans if node["Node Type"] == "Seq Scan"], found
        assert {node["Index Name"] for node in scans} <= {"chats_claimable", "chats_unsettled"}, found
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 6, found
        read = max(node["Shared Hit Blocks"] for node in found)  # by the whole plan, with what each row asks
        assert read <= 30, found
