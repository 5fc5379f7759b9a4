"""Questions to PostgreSQL by themselves: who is found, in which order, up to where, and what of damage is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg
import pytest

from turnwise.persistence.conformance import plans
from turnwise.persistence.postgres import queries
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.persistence.stored_chat import Salvaged
from turnwise.states.errors import ChatNotFound, ChatUnreadable
from turnwise.states.names import ChatState
from turnwise.states.triggers import Archived, ClearContext

NOON: Final = datetime(2026, 11, 22, 12, tzinfo=UTC)
ASKED: Final = (plans.send("hello"), plans.claim(), plans.start())


class Time:
    """The clock of a store: it stands still until a test sets it."""

    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def store(postgres_url: str, time: Time) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, now=time)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize(("column", "value"), [("version", "0"), ("version", "-1"), ("head", "'poison'")])
async def test_a_head_that_is_none_is_told_by_its_column(
    store: PostgresStore, beside: asyncpg.Connection, column: str, value: str
) -> None:
    await plans.created(store, "bad")
    await beside.execute(f"UPDATE chats SET {column} = {value}")  # noqa: S608
    with pytest.raises(ChatUnreadable, match=f"chats.{column}"):
        await store.head("bad")


async def listed(
    store: PostgresStore,
    *,
    owner: str | None = None,
    state: ChatState | None = None,
    limit: int = 9,
    after: str | None = None,
) -> str:
    found = await store.chats(owner=owner, state=state, limit=limit, after=after)
    return "".join((chat.facts if isinstance(chat, Salvaged) else chat).chat_id for chat in found)


async def test_chats_are_listed_by_owner_state_and_page_together(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    for number, owner in enumerate((None, "ann", "bob", "ann", "ann")):
        chat_id = "abcde"[number]
        await plans.created(store, chat_id, *([plans.send("hello")] if number % 2 else []), owner=owner)
    assert await listed(store) == "edcba"
    assert await listed(store, owner="ann") == "edb"
    assert await listed(store, state=ChatState.pending) == "db"
    assert await listed(store, state=ChatState.waiting) == "eca"
    assert await listed(store, state=ChatState.waiting, after="c") == "a"
    assert await listed(store, owner="ann", state=ChatState.pending) == "db"
    assert await listed(store, owner="ann", state=ChatState.pending, limit=1) == "d"
    assert await listed(store, owner="ann", state=ChatState.pending, after="d") == "b"
    assert await listed(store, owner="ann", after="d") == "b"
    assert await listed(store, owner="ann", state=ChatState.waiting, after="e") == ""
    assert await listed(store, owner="") == await listed(store, after="none") == ""
    await beside.execute("UPDATE facts SET body = 'poison' WHERE chat_id = 'd'")
    assert await listed(store, limit=2) == "ed"


async def test_what_has_run_out_is_told_in_order_and_in_bounds(store: PostgresStore, time: Time) -> None:
    for number, chat_id in enumerate("cab"):
        time.at = NOON + timedelta(seconds=number)
        await plans.created(store, chat_id, plans.send("hello"), plans.claim(f"w{number}", lease=10))

    async def out(after: float, limit: int = 9) -> str:
        time.at = NOON + timedelta(seconds=after)
        return "".join(chat_id for chat_id, _ in (await store.overdue(limit=limit)).leases)

    assert await out(9.999) == ""
    assert await out(10) == "c"
    assert await out(12) == "cab"
    assert await out(12, limit=2) == "ca"
    assert await store.holders() == {"w0", "w1", "w2"}


async def test_deadlines_are_those_of_open_calls_in_chats_that_wait_for_them(
    store: PostgresStore, time: Time, beside: asyncpg.Connection
) -> None:
    everyone = ("twice", "asked", "half", "whole", "archived", "stopped", "answered")
    for number, chat_id in enumerate(everyone):
        time.at = NOON + timedelta(seconds=number)
        await plans.created(store, chat_id, *ASKED, plans.reply("?", client=[f"{chat_id}1", f"{chat_id}2"]))

    async def due(limit: int = 9) -> tuple[str, ...]:
        return (await store.overdue(limit=limit)).deadlines

    assert await due() == everyone
    assert await due(2) == ("twice", "asked"), "two chats, although each has two calls"
    time.at -= timedelta(microseconds=1)
    assert await due() == everyone[:-1]
    time.at += timedelta(seconds=1)
    await store.change("archived", plans.plan(plans.move(Archived())))
    await store.change("answered", plans.plan(plans.submit("answered1", "answered2")))
    await beside.execute("UPDATE chats SET state = 'interrupted' WHERE id = 'stopped'")
    await beside.execute("UPDATE chats SET state = 'requires_action' WHERE id = 'answered'")
    assert await due() == ("twice", "asked", "half", "whole")
    await beside.execute("UPDATE calls SET status = 'succeeded' WHERE call_id IN ('half1', 'whole1', 'whole2')")
    assert await due() == ("twice", "asked", "half"), "a call that has ended counts for nothing, whatever its row keeps"


async def test_strays_are_told_in_the_order_of_their_creation(store: PostgresStore, beside: asyncpg.Connection) -> None:
    for chat_id in "cab":
        await plans.created(store, chat_id)
    await beside.execute("UPDATE chats SET state = 'lost'")
    await plans.created(store, "sound")
    assert (await store.overdue(limit=9)).strays == ("c", "a", "b")
    assert (await store.overdue(limit=2)).strays == ("c", "a")


async def test_history_as_of_a_version(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await plans.created(store, "chat", *plans.turn("one", "1"), *plans.turn("two", "2"))
    rows = await beside.fetch("SELECT position, added FROM messages ORDER BY position")

    async def then(version: int | None, after: int = 0) -> list[int]:
        return [said.position for said in await store.history("chat", at_version=version, after=after)]

    for position, version in rows:
        assert await then(version) == list(range(1, position + 1))
        assert await then(version - 1) == list(range(1, position))
    assert await then(None, 2) == await then(rows[-1]["added"], 2) == [3, 4]
    await beside.execute("UPDATE messages SET cut = 50 WHERE position > 2")
    assert (await then(None), await then(49), await then(50)) == ([1, 2], [1, 2, 3, 4], [1, 2])


async def test_prompts_that_are_asked_for_together_are_each_of_its_own_chat(store: PostgresStore) -> None:
    """The same twice, and none of a chat that nobody knows."""
    await plans.created(store, "b", *plans.turn("one", "1"), plans.move(ClearContext()), plans.send("two"))
    await plans.created(store, "a", *plans.turn("three", "3"))
    found = await store._pool.run(lambda on: queries.prompts(on, ["b", "none", "a", "b"]))
    assert [[said.text for said in prompt] for prompt in found] == [["two"], [], ["three", "3"], ["two"]]


async def test_raw_rows_are_those_of_one_chat(store: PostgresStore) -> None:
    for chat_id in ("chat", "other"):
        await plans.created(store, chat_id, *ASKED)
    rows = await store.raw_rows("chat")
    assert [row["id"] for row in rows["chats"]] == ["chat"]
    assert {row["chat_id"] for table, found in rows.items() for row in found if table != "chats"} == {"chat"}
    assert {"messages", "audit", "facts", "quarantine", "partial_events"} <= rows.keys()
    assert len(rows["messages"]) == 1
    for ask in (store.raw_rows, store.rows, store.rest, store.facts):
        with pytest.raises(ChatNotFound):
            await ask("none")


async def test_chats_are_gone_through_in_the_order_of_their_creation(store: PostgresStore) -> None:
    for chat_id in "cab":
        await plans.created(store, chat_id)
    numbered = await store.chat_ids(after=0, limit=9)
    assert [chat_id for _, chat_id in numbered] == ["c", "a", "b"]
    assert await store.chat_ids(after=numbered[0][0], limit=1) == [numbered[1]]
    assert await store.chat_ids(after=numbered[-1][0], limit=9) == []
