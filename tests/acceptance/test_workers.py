"""Worker processes are replaced, killed, frozen and resumed, on both stores."""

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import asyncpg
import pytest

from acceptance.crew import Crew
from acceptance.problems import problems_of_all
from acceptance.worker_process import ASK, Doom, Place
from support.processes.postgres_server import Server
from turnwise import Engine, Settings
from turnwise.providers.demo import DemoModel
from turnwise.states.events import Event, PartEvent

LONG = 600.0
"""A lease that outlives every test."""
SHORT = 1.0


def client_of(place: Place) -> Engine:
    return Engine(place.url, model=DemoModel(), settings=Settings(run_worker=False))


async def created(client: Engine, *messages: str) -> dict[str, list[str]]:
    accepted = {}
    for message in messages:
        chat = await client.create_chat(client_tools=[ASK])
        accepted[chat.id] = [(await client.send_message(chat.id, message)).message_id]
    return accepted


async def shown(client: Engine, chat_id: str, *, attempt: int) -> None:
    """Wait until a part of an attempt is visible."""
    async for event in client.events(chat_id):
        if isinstance(event, PartEvent) and event.attempt == attempt:
            return


async def acted(place: Place, act: str) -> None:
    while not place.world.exists() or f"{act} " not in place.world.read_text():  # noqa: ASYNC110 - no event comes from there
        await anyio.sleep(0.01)


async def attended(place: Place) -> None:
    """Wait until the server lists the worker's session."""
    address, _, schema = place.url.rpartition("&schema=")
    beside = await asyncpg.connect(address, server_settings={"search_path": schema})
    while not await beside.fetchval("SELECT count(*) FROM workers"):
        await anyio.lowlevel.checkpoint()
    await beside.close()


async def everything(client: Engine, chat_id: str) -> tuple[str, list[Event]]:
    """Return everything that was ever written to a chat."""
    return await client.export_audit(chat_id), [event async for event in client.events(chat_id, follow=False)]


async def triggers(client: Engine, chats: Iterable[str]) -> Counter[str]:
    logs = [await client.audit(chat_id) for chat_id in chats]
    return Counter(record.trigger for records in logs for record in records)


@pytest.mark.deep
async def test_replaced_workers_finish_every_chat(url: str, tmp_path: Path) -> None:
    """A redeploy releases chats, so no worker waits for a lease to expire."""
    place = Place(url, tmp_path, lease=LONG)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            old = [crew.hire() for _ in range(3)]
            await crew.at_work()
            accepted = await created(client, "Please: note pay stuck", *["Please: note pay slow"] * 49)
            stuck, *_ = accepted  # so there is one to let go, however slow this machine is, and the client on it
            await client.wait(stuck, until=["streaming"])
            for worker in old:
                crew.hire()
                assert await crew.dismiss(worker) == 0
            for chat_id in accepted:
                assert (await client.wait(chat_id)).state == "waiting"
        log = await triggers(client, accepted)
    assert log["released"] > 0
    assert log["lease_expired"] == 0
    assert await problems_of_all(place, accepted) == []


@pytest.mark.parametrize(
    ("tool", "outcome", "acts"),
    [
        ("pay", "unknown", 1),
        pytest.param("note", "succeeded", 2, marks=pytest.mark.deep),
        pytest.param("book", "succeeded", 1, marks=pytest.mark.deep),
    ],
)
async def test_worker_killed_in_a_tool_is_replaced_at_once(
    url: str, tmp_path: Path, tool: str, outcome: str, acts: int
) -> None:
    """The process is known to be dead although its lease is long; the tool's crash class decides the call's outcome."""
    place = Place(url, tmp_path, lease=LONG)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            killed = crew.hire(Doom(f"in {tool}"))
            accepted = await created(client, f"Please: {tool}")
            (chat_id,) = accepted
            await crew.ended(killed)
            crew.hire()
            assert (await client.wait(chat_id)).state == "waiting"
        assert (await triggers(client, accepted))["lease_expired"] == 1
        (result,) = [message.result for message in await client.messages(chat_id) if message.result]
    assert result.outcome == outcome
    acted = place.world.read_text().splitlines()
    assert (len(acted), len(set(acted))) == (acts, 1)
    assert await problems_of_all(place, accepted) == []


@pytest.mark.deep
async def test_worker_killed_elsewhere_is_replaced_at_once(postgres: Server, tmp_path: Path) -> None:
    """The server sees the end of the session, and every worker can ask the server."""
    here = Place(postgres.new_url("elsewhere"), tmp_path, lease=LONG)
    async with client_of(here) as client:
        with Crew.on(replace(here, host="elsewhere")) as others, Crew.on(here) as crew:
            killed = others.hire(Doom("in note"))
            await attended(here)
            accepted = await created(client, "Please: note")
            (chat_id,) = accepted
            await others.ended(killed)
            crew.hire()
            assert (await client.wait(chat_id)).state == "waiting"
        records = await client.audit(chat_id)
    assert [record.trigger for record in records].count("lease_expired") == 1
    first, *_, last = [record.actor for record in records if record.actor.startswith("worker:")]
    assert first.startswith("worker:elsewhere/")
    assert not last.startswith("worker:elsewhere/")
    assert await problems_of_all(here, accepted) == []


@pytest.mark.deep
async def test_woken_worker_writes_nothing(url: str, tmp_path: Path) -> None:
    """The worker froze before its commit. Another worker streams the same step; the token separates them."""
    place = Place(url, tmp_path, lease=SHORT)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            frozen = crew.hire(Doom("before change", signal=signal.SIGSTOP))
            accepted = await created(client, "Please: slow")
            (chat_id,) = accepted
            await client.wait(chat_id, until=["streaming"])
            with Crew.on(replace(place, lease=LONG)) as others:
                others.hire()
                await shown(client, chat_id, attempt=2)
                crew.thaw(frozen)
                await client.wait(chat_id)
                assert await crew.dismiss(frozen) == 0
        records = await client.audit(chat_id)
    taken_over = [record.trigger for record in records].index("lease_expired")
    assert len({record.actor for record in records[taken_over:]}) == 1
    assert await problems_of_all(place, accepted) == []


@pytest.mark.deep
async def test_late_result_of_a_frozen_worker_is_refused(url: str, tmp_path: Path) -> None:
    place = Place(url, tmp_path, lease=SHORT)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            frozen = crew.hire(Doom("in pay", signal=signal.SIGSTOP))
            accepted = await created(client, "Please: pay")
            (chat_id,) = accepted
            await acted(place, "pay")
            crew.hire()
            resting = await client.wait(chat_id)
            before = await everything(client, chat_id)
            crew.thaw(frozen)
            assert await crew.dismiss(frozen) == 0
            assert await everything(client, chat_id) == before
        assert resting.state == "waiting"
        (paid,) = [message.result for message in await client.messages(chat_id) if message.result]
    assert paid.outcome == "unknown"
    assert place.world.read_text().count("pay ") == 1
    assert await problems_of_all(place, accepted) == []
