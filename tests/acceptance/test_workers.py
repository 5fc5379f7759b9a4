"""Worker processes one by one: replaced, killed, frozen and woken, on both stores."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
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

TESTS = Path(__file__).parents[1]
LONG = 600.0
"""A lease that does not run out in a test."""
SHORT = 1.0


def client_of(place: Place) -> Engine:
    return Engine(place.url, model=DemoModel(), settings=Settings(run_worker=False))


@contextlib.contextmanager
def commanded(*options: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give two workers of the command line; none outlives the block."""
    target = "support.processes.demo_agents:AGENTS"
    command = [sys.executable, "-m", "turnwise.cli", "worker", target, "--quiet", *options]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    workers = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) for _ in range(2)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


async def begun(client: Engine, *said: str) -> dict[str, list[str]]:
    """Begin a chat with each message; return the chats, each with what it accepted."""
    accepted = {}
    for message in said:
        chat = await client.create_chat(client_tools=[ASK])
        accepted[chat.id] = [(await client.send_message(chat.id, message)).message_id]
    return accepted


async def shown(client: Engine, chat_id: str, *, attempt: int) -> None:
    """Wait until a part of an attempt is shown."""
    async for event in client.events(chat_id):
        if isinstance(event, PartEvent) and event.attempt == attempt:
            return


async def acted(place: Place, act: str) -> None:
    """Wait until a tool has acted on the world."""
    while not place.world.exists() or f"{act} " not in place.world.read_text():  # noqa: ASYNC110 - no event comes from there
        await anyio.sleep(0.01)


async def attended(place: Place) -> None:
    """Wait until the server knows a worker by its session."""
    address, _, schema = place.url.rpartition("&schema=")
    beside = await asyncpg.connect(address, server_settings={"search_path": schema})
    while not await beside.fetchval("SELECT count(*) FROM workers"):
        await anyio.lowlevel.checkpoint()
    await beside.close()


async def everything(client: Engine, chat_id: str) -> tuple[str, list[Event]]:
    """Return all that was ever written of a chat."""
    return await client.export_audit(chat_id), [event async for event in client.events(chat_id, follow=False)]


async def triggers(client: Engine, chats: Iterable[str]) -> Counter[str]:
    logs = [await client.audit(chat_id) for chat_id in chats]
    return Counter(record.trigger for records in logs for record in records)


async def test_workers_are_replaced_one_by_one_and_every_chat_finishes(url: str, tmp_path: Path) -> None:
    """A redeploy: chats are let go, not abandoned, so nobody waits for a lease to run out."""
    place = Place(url, tmp_path, lease=LONG)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            old = [crew.hire() for _ in range(3)]
            await crew.at_work()
            accepted = await begun(client, "Please: note pay stuck", *["Please: note pay slow"] * 49)
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


async def test_workers_of_the_command_line_share_the_chats_of_a_store(url: str, tmp_path: Path) -> None:
    place = Place(url, tmp_path)
    async with client_of(place) as client:
        with commanded("--store", url, "--concurrency", "2") as workers:
            accepted = await begun(client, *["hello"] * 10)
            for chat_id in accepted:
                assert (await client.wait(chat_id)).state == "waiting"
            for worker in workers:
                worker.terminate()
            codes = {await anyio.to_thread.run_sync(worker.wait) for worker in workers}
    assert codes <= {0, -signal.SIGTERM}  # the latter, if it had hardly begun
    assert await problems_of_all(place, accepted) == []


@pytest.mark.parametrize(
    ("tool", "outcome", "acts"), [("pay", "unknown", 1), ("note", "succeeded", 2), ("book", "succeeded", 1)]
)
async def test_a_worker_that_is_killed_in_a_tool_is_replaced_at_once(
    url: str, tmp_path: Path, tool: str, outcome: str, acts: int
) -> None:
    """Its process is known to be dead although its lease is long; and the tool decides what comes of the call."""
    place = Place(url, tmp_path, lease=LONG)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            killed = crew.hire(Doom(f"in {tool}"))
            accepted = await begun(client, f"Please: {tool}")
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


async def test_a_worker_that_is_killed_on_another_machine_is_replaced_without_waiting_for_its_lease(
    postgres: Server, tmp_path: Path
) -> None:
    """The server sees the end of its session, and everybody can ask the server."""
    here = Place(postgres.new_url("elsewhere"), tmp_path, lease=LONG)
    async with client_of(here) as client:
        with Crew.on(replace(here, host="elsewhere")) as others, Crew.on(here) as crew:
            killed = others.hire(Doom("in note"))
            await attended(here)
            accepted = await begun(client, "Please: note")
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


async def test_a_worker_that_wakes_while_another_does_its_work_can_write_nothing(url: str, tmp_path: Path) -> None:
    """It was frozen on its way to the store, with its reply. Both stream the same step: the token tells them apart."""
    place = Place(url, tmp_path, lease=SHORT)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            frozen = crew.hire(Doom("before change", signal=signal.SIGSTOP))
            accepted = await begun(client, "Please: slow")
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


async def test_a_payment_that_froze_with_its_worker_is_made_once_and_its_late_result_is_refused(
    url: str, tmp_path: Path
) -> None:
    place = Place(url, tmp_path, lease=SHORT)
    async with client_of(place) as client:
        with Crew.on(place) as crew:
            frozen = crew.hire(Doom("in pay", signal=signal.SIGSTOP))
            accepted = await begun(client, "Please: pay")
            (chat_id,) = accepted
            await acted(place, "pay")
            crew.hire()
            rested = await client.wait(chat_id)
            before = await everything(client, chat_id)
            crew.thaw(frozen)
            assert await crew.dismiss(frozen) == 0
            assert await everything(client, chat_id) == before
        assert rested.state == "waiting"
        (paid,) = [message.result for message in await client.messages(chat_id) if message.result]
    assert paid.outcome == "unknown"
    assert place.world.read_text().count("pay ") == 1
    assert await problems_of_all(place, accepted) == []
