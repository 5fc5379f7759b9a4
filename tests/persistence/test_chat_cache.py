"""What a process remembers of a chat without a lease: any other may have changed it since, so the database is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest
from msgspec.structs import replace
from tests.persistence.conftest import Pair

from support.sql_by_hand import by_hand
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.chat_cache import ChatCache
from turnwise.persistence.commit import Standing
from turnwise.persistence.conformance import plans
from turnwise.persistence.rows import blank_facts
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts
from turnwise.states.messages import QueuedMessage, TextPart
from turnwise.states.triggers import Archived, ClearContext, MetadataChanged, Released, Renamed, Unarchived


def rename(title: str) -> plans.Move:
    return plans.move(Renamed(title=title))


ELSEWHERE: Final = {
    "nothing but a label": (rename("elsewhere"),),
    "a label and back": (rename("elsewhere"), rename("here")),
    "a message": (plans.send("elsewhere"),),
    "a whole turn": plans.turn("elsewhere", "2"),
    "a clearing of the context": (plans.move(ClearContext()),),
    "the archive and back": (plans.move(Archived()), plans.move(Unarchived())),
    "an open call": (plans.send("elsewhere"), plans.claim(), plans.start(), plans.reply("", client=["c"])),
}


@pytest.mark.parametrize("moves", ELSEWHERE.values(), ids=ELSEWHERE)
async def test_plan_sees_changes_of_another_process(pair: Pair, moves: tuple[plans.Move, ...]) -> None:
    """Between two commits of this one, nobody holding the chat: nothing is decided about what is over."""
    here, elsewhere = pair
    await plans.created(here, "chat", *plans.turn("one", "1"), rename("here"))
    for move in moves:
        left = await elsewhere.change("chat", plans.plan(move))
    asked: list[Facts] = []

    def relabel(facts: Facts, now: datetime) -> list[Decision]:
        asked.append(facts)
        return [plans.move(MetadataChanged(metadata={"seen": facts.version}))(facts, now)]

    committed = await here.change("chat", relabel)
    assert asked[-1] == committed.before == left.facts
    assert committed.facts.version == left.facts.version + 1
    assert await elsewhere.facts("chat") == await here.facts("chat") == committed.facts
    assert verify_stored("chat", await here.rows("chat")).ok
    events = await here.events("chat", after=0, limit=1000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_claim_reads_changes_of_another_process(pair: Pair) -> None:
    """A chat that was taken, worked on and given back by another comes with what that one left."""
    here, elsewhere = pair
    await plans.created(here, "chat", plans.send("one"))
    released = (plans.claim("other"), plans.start(), plans.move(Released(token=plans.HOLDER)), rename("elsewhere"))
    for move in released:
        left = await elsewhere.change("chat", plans.plan(move))
    (claimed,) = await here.claim(plans.plan(plans.claim("mine")), runs=plans.RUNS, limit=1)
    assert claimed.facts.version == left.facts.version + 1
    assert claimed.facts.profile.title == "elsewhere"
    assert claimed.facts.lease.token == 2
    assert verify_stored("chat", await here.rows("chat")).ok


BY_HAND: Final = {
    "state": ("UPDATE chats SET state = 'dreaming'", "UPDATE chats SET state = 'dreaming'"),
    "facts": (
        """UPDATE chats SET facts = json_set(facts, '$.serial', 77)""",
        """UPDATE facts SET body = jsonb_set(body::jsonb, '{serial}', '77')::text""",
    ),
    "token": (
        "INSERT INTO leases (chat_id, worker, token, expires) VALUES ('chat', 'other', 1, 0)",
        "UPDATE chats SET worker = 'other', token = 1, expires = now()",
    ),
}


@pytest.mark.parametrize("what", BY_HAND)
async def test_change_by_sql_is_seen_without_a_version(pair: Pair, either_url: str, what: str) -> None:
    """An operator's SQL makes no version: state, token and facts are compared all the same."""
    here, elsewhere = pair
    await plans.created(here, "chat", *plans.turn("one", "1"))
    on_sqlite, on_postgres = BY_HAND[what]
    await by_hand(either_url, on_sqlite if either_url.startswith("sqlite") else on_postgres)
    asked: list[Facts] = []

    def look(facts: Facts, now: datetime) -> list[Decision]:
        asked.append(facts)
        return []

    await here.change("chat", look)
    assert asked[-1] == await elsewhere.facts("chat")


def test_cache_keeps_the_last_used_chats() -> None:
    cache, at = ChatCache(), datetime(2026, 1, 1, tzinfo=UTC)
    names = [str(number) for number in range(3000)]
    for name in names:
        cache.put(Standing(blank_facts(name, at), GENESIS, at))
        cache.put(Standing(blank_facts("again", at), GENESIS, at))
    remembered = [name for name in names if cache.get(name) is not None]
    assert remembered == names[-len(remembered) :]
    assert 100 < len(remembered) < len(names)
    assert cache.get("again") is not None


def test_cache_is_bounded_by_what_queues_hold() -> None:
    """The newest chat stays, however large its queue is, and so do those whose queues are small."""
    cache, now = ChatCache(), datetime.now(UTC)
    large = (QueuedMessage(id="m1", parts=(TextPart(text="x" * 50_000_000),), accepted_at=now),)
    for name, queue in {"one": large, "empty": (), "two": large, "three": large}.items():
        cache.put(Standing(replace(blank_facts(name, now), queue=queue), GENESIS, now))
    assert cache.known() == ["empty", "two", "three"]
    cache.forget("three")
    cache.put(Standing(blank_facts("two", now), GENESIS, now))
    cache.put(Standing(replace(blank_facts("four", now), queue=large), GENESIS, now))
    cache.put(Standing(replace(blank_facts("five", now), queue=large), GENESIS, now))
    assert cache.known() == ["empty", "two", "four", "five"]
