"""What a commit must find as it was read: a chat that another process has touched is read again, never overwritten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.states.errors import ChatUnreadable, IllegalTransition
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Renamed


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Return the stores of two processes."""
    one, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    await one.open()
    await other.open()
    yield one, other
    await one.close()
    await other.close()


def rename(title: str) -> plans.Plan:
    return plans.plan(plans.move(Renamed(title=title)))


async def test_no_event_number_is_given_twice_while_a_holder_journals(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """What is shown changes neither version nor head, state nor token: only the number of the last event tells."""
    holder, other = stores
    await plans.created(holder, "chat", plans.send("hello"), plans.claim(), plans.start())
    await other.change("chat", rename("first"))  # it remembers the chat under its lease from now on
    for number in range(3):
        await holder.journal("chat", 1, ChatState.streaming, [part(str(number)), part("and")])
        await other.change("chat", rename(f"after {number}"))
    await holder.change("chat", plans.plan(plans.reply("hi")))
    events = await holder.events("chat", after=0, limit=100)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.part.delta for event in await holder.shown("chat", 1, 1)] == ["0", "and", "1", "and", "2", "and"]
    assert (await holder.facts("chat")).profile.title == "after 2"


async def test_a_version_that_another_process_took_is_not_ones_own(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends before the commit arrives, and somebody else commits that version: its hash tells."""
    one, other = stores
    await plans.created(one, "chat")
    ask, left = asyncpg.Connection.fetch, ["once"]

    async def overtaken(connection: asyncpg.Connection, query: str, *given: Any, **options: Any) -> Any:
        if left and query.startswith("-- name: commit"):
            left.clear()
            await other.change("chat", plans.plan(plans.send("from elsewhere")))
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return await ask(connection, query, *given, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", overtaken)
    committed = await one.change("chat", rename("from here"))
    assert committed.facts.version == 3
    assert (await one.facts("chat")).profile.title == "from here"
    assert [message.text for message in await one.history("chat")] == ["from elsewhere"]
    assert verify_records(await one.audit("chat")).ok


async def test_numbers_that_another_process_took_are_not_those_of_what_is_shown_here(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends before the parts arrive, and somebody else shows others under those numbers."""
    one, other = stores
    await plans.created(one, "chat", plans.send("hello"), plans.claim(), plans.start())
    ask, left = asyncpg.Connection.fetch, ["once"]

    async def overtaken(connection: asyncpg.Connection, query: str, *given: Any, **options: Any) -> Any:
        if left and query.startswith("-- name: journal"):
            left.clear()
            await other.journal("chat", 1, ChatState.streaming, [part("theirs")])
            connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return await ask(connection, query, *given, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", overtaken)
    stored = await one.journal("chat", 1, ChatState.streaming, [part("ours"), part("theirs")])
    events = await one.events("chat", after=0, limit=100)
    assert events[-2:] == list(stored)
    assert [event.part.delta for event in await one.shown("chat", 1, 1)] == ["theirs", "ours", "theirs"]


READS: dict[str, Callable[[PostgresStore], Awaitable[Any]]] = {
    "a chat with its history": lambda store: store.snapshot("chat"),
    "the rows for a check": lambda store: store.rows("chat"),
    "the rows for an export": lambda store: store.raw_rows("chat"),
}


@pytest.mark.parametrize("read", READS)
async def test_what_is_read_by_several_questions_is_of_one_moment(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Another process commits between the first question and the rest."""
    one, other = stores
    await plans.created(one, "chat", plans.send("hello"), plans.claim(), plans.start())
    before = await READS[read](one)
    ask, left = asyncpg.Connection.fetch, ["once"]

    async def disturbed(connection: asyncpg.Connection, query: str, *given: Any, **options: Any) -> Any:
        answer = await ask(connection, query, *given, **options)
        if left and "profile" in query + str(answer):
            left.clear()
            await other.change("chat", plans.plan(plans.reply("hi")))
        return answer

    monkeypatch.setattr(asyncpg.Connection, "fetch", disturbed)
    assert await READS[read](one) == before
    assert not left
    assert await READS[read](one) != before


async def test_a_claim_that_meets_rows_of_versions_to_come_passes_over_that_chat_alone(
    stores: tuple[PostgresStore, PostgresStore], beside: asyncpg.Connection
) -> None:
    """A restored table, a stray insert: the record of the next version stands there already."""
    one, _ = stores
    chats = ["before", "contradicted", "after"]
    for chat_id in chats:
        await plans.created(one, chat_id, plans.send("hello"))
    await beside.execute(
        "INSERT INTO audit (chat_id, version, body) SELECT chat_id, version + 1, body FROM audit"
        " WHERE chat_id = 'contradicted' AND version = 2"
    )
    claimed = await one.claim(plans.plan(plans.claim("worker")), runs=plans.RUNS, limit=10)
    assert [committed.facts.chat_id for committed in claimed] == ["before", "after"]
    assert (await one.facts("contradicted")).state is ChatState.pending


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE chats SET event_seq = 9223372036854775807 WHERE id = 'full'",
        "UPDATE chats SET version = 9223372036854775807 WHERE id = 'full'",
        "UPDATE facts SET body = '{\"fence\":9223372036854775807,' || substr(body, 2) WHERE chat_id = 'full'",
        # Whatever else the server refuses to store for one chat: here the next row of its log.
        "ALTER TABLE audit ADD CHECK (chat_id <> 'full' OR version < 3) NOT VALID",
        "ALTER TABLE audit ADD CHECK (chat_id <> 'full' OR version < 3 OR 1 / (3 - version) > 0) NOT VALID",
    ],
    ids=["events", "versions", "tokens", "a constraint", "a value"],
)
async def test_a_claim_that_the_server_refuses_for_one_chat_passes_over_that_chat_alone(
    stores: tuple[PostgresStore, PostgresStore],
    beside: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    """Also if this process remembers the chat."""
    one, other = stores
    chats = ["before", "full", "after"]
    for chat_id in chats:
        await plans.created(one, chat_id, plans.send("hello"))
    await beside.execute(damage)
    for store, left in ((one, ["before", "after"]), (other, [])):
        claimed = await store.claim(plans.plan(plans.claim("worker")), runs=plans.RUNS, limit=10)
        assert [committed.facts.chat_id for committed in claimed] == left
    assert "claim_refused chat_id=full" in caplog.text


async def test_a_chat_that_a_claim_has_passed_over_is_left_alone_for_a_while_and_then_claimed(
    stores: tuple[PostgresStore, PostgresStore], beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is claimed nothing is remembered of it: its next failure is logged again."""
    one, _ = stores
    await plans.created(one, "chat", plans.send("hello"))
    passed_over, now = one._transactions._passed_over, [100.0]
    monkeypatch.setattr(passed_over, "_now", lambda: now[0])

    async def claimed() -> list[str]:
        commits = await one.claim(plans.plan(plans.claim("worker")), runs=plans.RUNS, limit=10)
        return [committed.facts.chat_id for committed in commits]

    await beside.execute(
        "INSERT INTO audit (chat_id, version, body) SELECT chat_id, version + 1, body FROM audit WHERE version = 2"
    )
    assert await claimed() == []
    assert passed_over.skips("chat")
    await beside.execute("DELETE FROM audit WHERE version = 3")
    assert await claimed() == []
    now[0] += 60
    assert await claimed() == ["chat"]
    assert not passed_over._failures


async def test_a_state_that_somebody_wrote_by_hand_is_not_written_over(
    stores: tuple[PostgresStore, PostgresStore], beside: asyncpg.Connection
) -> None:
    """The version stayed as it was: what is remembered of a chat under a lease holds only in the state it was in."""
    one, _ = stores
    await plans.created(one, "chat", plans.send("hello"), plans.claim(), plans.start())
    await one.change("chat", rename("remembered"))
    await beside.execute("UPDATE chats SET state = 'dreaming' WHERE id = 'chat'")
    with pytest.raises(IllegalTransition, match="unknown"):
        await one.change("chat", plans.plan(plans.reply("hi")))
    assert await beside.fetchval("SELECT state FROM chats WHERE id = 'chat'") == "dreaming"


@pytest.mark.parametrize(("column", "value"), [("version", 9), ("head", "f" * 64)])
async def test_a_place_in_the_log_that_somebody_wrote_by_hand_is_not_written_over(
    stores: tuple[PostgresStore, PostgresStore], beside: asyncpg.Connection, column: str, value: object
) -> None:
    """The next record follows what the chat's row says, not what is remembered of it."""
    one, _ = stores
    await plans.created(one, "chat", plans.send("hello"), plans.claim(), plans.start())
    await one.change("chat", rename("remembered"))
    await beside.execute(f"UPDATE chats SET {column} = $1", value)  # noqa: S608 - two names
    found = await beside.fetchrow("SELECT version, head FROM chats")
    await one.change("chat", rename("after"))
    last = (await one.audit("chat"))[-1]
    assert (last.version, last.prev) == (found["version"] + 1, found["head"])


@pytest.mark.parametrize(
    ("column", "forged", "found"),
    [
        ("state", "'interrupted'", lambda before: before.state == ChatState.interrupted),
        ("version", "7", lambda before: before.version == 7),
        ("event_seq", "9", lambda before: before.last_seq == 9),
    ],
)
async def test_a_row_that_is_not_as_it_was_remembered_is_read_again(
    stores: tuple[PostgresStore, PostgresStore],
    beside: asyncpg.Connection,
    column: str,
    forged: str,
    found: Callable[[Facts], bool],
) -> None:
    """Column by column: a commit on what is remembered would overwrite what somebody has made of the row."""
    one, _ = stores
    await plans.created(one, "chat")
    await one.change("chat", rename("remembered"))
    await beside.execute(f"UPDATE chats SET {column} = {forged} WHERE id = 'chat'")  # noqa: S608 - ours
    committed = await one.change("chat", rename("again"))
    assert found(committed.before)
    assert committed.facts.profile.title == "again"


async def test_a_number_of_the_last_event_that_has_no_next_one_is_told_of_a_chat_that_is_remembered(
    stores: tuple[PostgresStore, PostgresStore], beside: asyncpg.Connection
) -> None:
    one, _ = stores
    await plans.created(one, "chat")
    await beside.execute("UPDATE chats SET event_seq = 9223372036854775807")
    with pytest.raises(ChatUnreadable, match=r"chats\.event_seq"):
        await one.change("chat", rename("again"))


async def test_a_head_that_is_not_as_it_was_remembered_is_built_upon(
    stores: tuple[PostgresStore, PostgresStore], beside: asyncpg.Connection
) -> None:
    one, _ = stores
    await plans.created(one, "chat")
    await one.change("chat", rename("remembered"))
    await beside.execute("UPDATE chats SET head = repeat('0', 64) WHERE id = 'chat'")
    await one.change("chat", rename("again"))
    assert (await one.audit("chat"))[-1].prev == "0" * 64


@pytest.mark.parametrize("half", ["token = 5", "worker = 'somebody'"])
async def test_half_a_lease_is_a_chat_that_cannot_be_read(
    stores: tuple[PostgresStore, PostgresStore], beside: asyncpg.Connection, half: str
) -> None:
    """No commit could ever find the row as it was read."""
    one, other = stores
    await plans.created(one, "chat")
    await beside.execute(f"UPDATE chats SET {half} WHERE id = 'chat'")  # noqa: S608 - ours
    with pytest.raises(ChatUnreadable, match=r"chats\.(worker|token)"):
        await other.change("chat", rename("again"))
    assert (await other.rest("chat")).flaws
