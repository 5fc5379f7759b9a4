"""Rows of numbers to come: a restored table, a stray insert. Whoever meets one is told which chat, and where."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from support.sql_by_hand import by_hand
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import ChatUnreadable
from turnwise.states.names import ChatState
from turnwise.states.triggers import Renamed

pytestmark = pytest.mark.anyio

EVENT = (
    "INSERT INTO events (chat_id, seq, kind, at, body)"
    " SELECT chat_id, seq + 1, kind, at, body FROM events ORDER BY seq DESC LIMIT 1"
)
RECORD = (
    "INSERT INTO audit (chat_id, version, {0}body) SELECT chat_id, version + 1, {0}body FROM audit WHERE version = 4"
)
MESSAGE = "UPDATE messages SET position = 2, id = 'm9'"
ACTS: dict[str, Callable[[ChatStore], Awaitable[object]]] = {
    "a change": lambda store: store.change("chat", plans.plan(plans.reply("hi"))),
    "a rename": lambda store: store.change("chat", plans.plan(plans.move(Renamed(title="other")))),
    "a journal": lambda store: store.journal("chat", 1, ChatState.streaming, [part("hi")]),
}


@pytest.fixture
async def store(either_url: str) -> AsyncIterator[ChatStore]:
    store = store_from_url(either_url, durability="normal", now=None)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("act", "table"),
    [("a change", "audit"), ("a change", "events"), ("a change", "messages"), ("a rename", "audit")],
)
async def test_a_row_of_a_number_to_come_is_told_with_its_chat(
    store: ChatStore, either_url: str, act: str, table: str
) -> None:
    await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start())
    hash_ = "hash, " if either_url.startswith("sqlite") else ""
    damage = {"audit": RECORD.format(hash_), "events": EVENT, "messages": MESSAGE}[table]
    if table == "events":
        (last,) = await by_hand(either_url, "SELECT event_seq FROM chats")
        damage = EVENT.replace("seq + 1,", f"{last[0] + 1},")
    await by_hand(either_url, damage)
    before = await store.facts("chat")
    with pytest.raises(ChatUnreadable) as caught:
        await ACTS[act](store)
    assert caught.value.chat_id == "chat"
    assert caught.value.column.startswith(f"{table}.")
    assert await store.facts("chat") == before


async def test_a_part_that_is_there_already_is_told_with_its_chat(store: ChatStore, either_url: str) -> None:
    await plans.created(store, "chat", plans.send("hello"), plans.claim(), plans.start())
    (stored,) = await store.journal("chat", 1, ChatState.streaming, [part("hi")])
    await by_hand(either_url, f"UPDATE chats SET event_seq = {stored.seq - 1}")  # noqa: S608 - ours
    with pytest.raises(ChatUnreadable) as caught:
        await ACTS["a journal"](store)
    assert caught.value.chat_id == "chat"
    assert caught.value.column.partition(".")[0] in ("events", "partial_events")
