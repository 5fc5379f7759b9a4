"""What one process tells the others through PostgreSQL: a hint for every chat, and one for whatever was missed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import asyncpg
import pytest

from turnwise.persistence.conformance import plans
from turnwise.persistence.conformance.checks import part
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.states.names import ChatState
from turnwise.states.triggers import Renamed

NEVER = 3600


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Return two stores of one database, as two processes would have them, that never poll."""
    async with AsyncExitStack() as stack:
        pair = PostgresStore(postgres_url, poll_interval=NEVER), PostgresStore(postgres_url, poll_interval=NEVER)
        for store in pair:
            await store.open()
            stack.push_async_callback(store.close)
        yield pair


RENAME = plans.plan(plans.move(Renamed(title="other")))


async def test_every_change_and_every_part_is_hinted_at(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """To the other process; first of all it is told that it may have missed some."""
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    await plans.created(here, "chat", plans.send("hello"), plans.claim(), plans.start())
    assert await anext(watch) == "chat"
    await plans.created(here, "other")
    while await anext(watch) != "other":
        pass
    await here.journal("chat", 1, ChatState.streaming, [part("h")])
    assert await anext(watch) == "chat"


async def test_the_hints_of_a_moment_go_together_however_many_they_are(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """More than one notice may carry."""
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    told = {f"chat {number} {'x' * 40}" for number in range(900)}
    for chat_id in told:
        here._notices.tell(chat_id)
    heard: set[str | None] = set()
    while heard != told:
        heard.add(await anext(watch))
        assert heard <= told


async def test_a_process_does_not_hear_itself(stores: tuple[PostgresStore, PostgresStore]) -> None:
    here, there = stores
    watch = aiter(here.watch())
    assert await anext(watch) is None
    await plans.created(here, "mine")
    await plans.created(there, "theirs")
    assert await anext(watch) == "theirs"


async def test_a_broken_connection_is_made_again(
    stores: tuple[PostgresStore, PostgresStore], postgres_server: str
) -> None:
    """What was missed meanwhile is hinted at as a whole, and later changes are heard again."""
    here, there = stores
    await plans.created(here, "chat")
    watch = aiter(there.watch())
    assert await anext(watch) is None
    beside = await asyncpg.connect(postgres_server)
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    assert await beside.fetchval(cut) >= 1
    await beside.close()
    while await anext(watch) is not None:
        pass  # a hint from before the cut may still be on its way
    await here.change("chat", RENAME)
    while await anext(watch) != "chat":
        pass


async def test_a_poll_stands_behind_the_notices(postgres_url: str) -> None:
    """Now and then some chat is hinted at, although nothing was heard."""
    store = PostgresStore(postgres_url, poll_interval=0.01)
    await store.open()
    watch = aiter(store.watch())
    assert [await anext(watch) for _ in range(3)] == [None, None, None]
    await store.close()


async def test_whoever_is_far_behind_gets_one_hint_for_all(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """Memory stays bounded, whatever a reader does."""
    here, there = stores
    watch = aiter(there.watch())
    assert await anext(watch) is None
    beside = await asyncpg.connect(here._pool._url, **here._pool._options)
    await beside.execute(
        "SELECT pg_notify(current_schema(), 'someone chat-' || number) FROM generate_series(1, 1500) AS number"
    )
    await beside.close()
    first = await anext(watch)
    assert first in (None, "chat-1")
    with anyio.fail_after(120):
        while first is not None:
            first = await anext(watch)


async def test_listening_ends_with_the_store(stores: tuple[PostgresStore, PostgresStore]) -> None:
    here, _ = stores
    heard: list[str | None] = []

    async def listen() -> None:
        heard.extend([hint async for hint in here.watch()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await anyio.wait_all_tasks_blocked()
        await here.close()
    assert set(heard) <= {None}


async def test_what_was_not_told_is_not_waited_for_when_a_store_closes(postgres_url: str) -> None:
    """Closing sends what waits, and ends whoever listens."""
    store = PostgresStore(postgres_url)
    await store.open()
    watch = aiter(store.watch())
    assert await anext(watch) is None
    await plans.created(store, "chat")
    await store.close()
    await store.close()
