"""Chats that were begun when records bound less: what nothing binds is not held against them, the rest is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.sql_by_hand import by_hand
from turnwise.persistence import commit
from turnwise.persistence.audit.record import Entry, entry_of
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.states.writes import PutCall, PutProfile, PutQueued, RecordReceipt, RecordUsage

LIFE = [
    *(plans.send("hello"), plans.claim(), plans.start(), plans.reply("hi", client=["a"])),
    *(plans.submit("a"), plans.claim(), plans.start(), plans.send("one"), plans.send("two"), plans.send("three")),
    *(plans.reply("so"), plans.claim(), plans.start()),
]
"""What is done to a chat after its creation: something of every kind is stored, and a message waits at the end."""


@pytest.fixture
async def store(either_url: str) -> AsyncIterator[ChatStore]:
    store = store_from_url(either_url, durability="normal", now=None)
    await store.open()
    yield store
    await store.close()


async def lived(store: ChatStore, monkeypatch: pytest.MonkeyPatch, *, older: int) -> None:
    """Live the life: its first so many records bind no events, and no body of most rows."""

    def unbound(*given: Any, **named: Any) -> Entry:
        return entry_of(*given, **{**named, "bonds": ()})

    with monkeypatch.context() as before:
        before.setattr(commit, "entry_of", unbound)
        for kind in (PutProfile, PutCall, PutQueued, RecordReceipt, RecordUsage):
            before.setattr(kind, "digest", property(lambda _: "0" * 64))
        await store.create("chat", plans.plan(plans.create()))
        for move in LIFE[: older - 1]:
            await store.change("chat", plans.plan(move))
    for move in LIFE[older - 1 :]:
        await store.change("chat", plans.plan(move))


async def verdict(store: ChatStore) -> Verdict:
    return verify_stored("chat", await store.rows("chat"))


@pytest.mark.parametrize("older", range(1, len(LIFE) + 2))
async def test_a_chat_verifies_wherever_in_its_life_records_began_to_bind_more(
    store: ChatStore, monkeypatch: pytest.MonkeyPatch, older: int
) -> None:
    await lived(store, monkeypatch, older=older)
    assert await verdict(store) == Verdict(ok=True)


@pytest.mark.parametrize("older", [1, 4, len(LIFE) - 1])
async def test_what_was_told_since_then_is_bound(
    store: ChatStore, either_url: str, monkeypatch: pytest.MonkeyPatch, older: int
) -> None:
    """The first event that a record binds, rewritten and then taken away."""
    await lived(store, monkeypatch, older=older)
    since = (await store.audit("chat"))[older:]
    version, span = next((record.version, bond) for record in since for bond in record.writes if bond.kind == "events")
    first = span.id.partition("-")[0]
    does = ("UPDATE events SET kind = kind || 'x'", "DELETE FROM events")
    for damage in does:
        await by_hand(either_url, f"{damage} WHERE seq = {first}")
        found = await verdict(store)
        assert (found.ok, found.position) == (False, version), found
        assert (found.place or "").startswith(f"events[{span.id}]"), found
