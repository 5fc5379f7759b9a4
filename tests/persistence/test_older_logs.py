"""Chats that were begun when records bound less: what nothing binds is not held against them, the rest is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.spelled_log import log_of
from support.sql_by_hand import by_hand
from turnwise.persistence import commit
from turnwise.persistence.audit.check_transitions import Replay
from turnwise.persistence.audit.check_writes import Violation
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
        return entry_of(*given, **{**named, "row_digests": ()})

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
    writes = [(one.version, write) for one in (await store.audit("chat"))[older:] for write in one.writes]
    version, span = next((version, write) for version, write in writes if write.kind == "events")
    first = span.id.partition("-")[0]
    does = ("UPDATE events SET kind = kind || 'x'", "DELETE FROM events")
    for damage in does:
        await by_hand(either_url, f"{damage} WHERE seq = {first}")
        found = await verdict(store)
        assert (found.ok, found.position) == (False, version), found
        assert (found.place or "").startswith(f"events[{span.id}]"), found


PLANNED = """
create - waiting 0 0 0 profile=
send_message waiting pending 1 0 0 message=m1
worker:w>claimed pending streaming 1 1 0 lease=1~w
worker:w>attempt_started streaming streaming 1 1 1
worker:w>step_finished streaming executing_tools 1 1 1 message=m2 call:planned:at_least_once=c1~old
worker:w>call_started executing_tools executing_tools 1 1 1 call:started=c1~{digest} {cover}
worker:w>call_started executing_tools executing_tools 1 1 1 call:started=c1~{digest}
"""
"""A call that is planned in one commit, and started in two more."""


@pytest.mark.parametrize(
    ("digest", "cover", "refused"),
    [("old", "", None), ("new", "facts=9", None), ("new", "", 6)],
    ids=["by the same version", "by one that covers more", "by the same version with other arguments"],
)
def test_a_call_that_an_older_version_planned_may_be_started_under_another_digest(
    digest: str, cover: str, refused: int | None
) -> None:
    """By a version that covers the chat's rows, and so makes other digests; else it is a call with other arguments."""
    assert refused_at(PLANNED.format(digest=digest, cover=cover)) == refused


def test_what_is_planned_under_the_newer_version_is_bound_to_its_digest() -> None:
    covered = PLANNED.replace("~old", "~old facts=8")
    assert refused_at(covered.format(digest="new", cover="")) == 6


@pytest.mark.parametrize(("cover", "refused"), [("facts=9", None), ("", 6)])
def test_what_the_first_of_two_records_of_a_commit_tells_is_explained_by_the_second(
    cover: str, refused: int | None
) -> None:
    """If neither covers more, the first call with other arguments is the one that is named."""
    first, second = ("call:planned:at_least_once=c1~old", "call:planned:at_least_once=c2~old")
    planned = PLANNED.replace(first, f"{first} {second}").format(digest="new", cover="").rpartition("call:started")[0]
    assert refused_at(f"{planned} call:started=c2~new {cover}", together=True) == refused


def refused_at(text: str, *, together: bool = False) -> int | None:
    """Replay a log, return the version that was refused, or nothing.

    The records from the sixth on are commits of their own, or one `together`.
    """
    replay = Replay()
    try:
        for record in log_of(text):
            later = min(max(record.version - 5, 0), 1 if together else 9)
            replay.follow(replace(record, at=record.at + timedelta(seconds=later)))
        replay.end()
    except Violation as violation:
        return violation.record.version
    return None
