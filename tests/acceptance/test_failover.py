"""Database servers that die, freeze or become unreachable, and clients that vanish: losses and delays.

A proxy drops packets; network namespaces show what real kernels do.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread
import pytest
from tests.service.test_server import serving

from support.gated_model import GatedModel, PacedModel
from support.processes.namespaces import Machine, machine, needs_namespaces
from support.processes.postgres_server import Server
from support.processes.silent_proxy import SilentProxy
from turnwise import Checkpoints, Engine, Settings, SigningKey, StoreError, ToolContext, tool
from turnwise.persistence.postgres import servers
from turnwise.persistence.postgres.timeouts import CONNECT_S, GONE_AFTER_S, RETRY_S, SUSPECT_AFTER_S
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.service import ServiceSettings
from turnwise.states.names import ChatState

pytestmark = pytest.mark.deep

SLACK_S = 10.0
"""Extra time that a busy machine may need. Limits of minutes, which would apply without these, are far off."""


async def seconds_until(none: Callable[[], bool]) -> float:
    """Return how long it takes until no row is left; no event announces that."""
    start = monotonic()
    with anyio.fail_after(120):
        while not none():  # noqa: ASYNC110 - no event comes from there
            await anyio.sleep(0.2)
    return monotonic() - start


class Load:
    """Clients that ask one question after another, and repeat each with the same id until it is acknowledged."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.acknowledged: dict[str, list[str]] = {}
        self.times: list[float] = []
        self._more = anyio.Condition()

    async def reach(self, count: int) -> None:
        """Wait until `count` questions were acknowledged."""
        with anyio.fail_after(120):
            async with self._more:
                while len(self.times) < count:
                    await self._more.wait()

    async def talk(self, until: anyio.Event) -> None:
        chat = await self._engine.create_chat()
        mine = self.acknowledged[chat.id] = []
        while not until.is_set():
            name = f"m{len(mine)}"
            with suppress(StoreError):
                await self._engine.send_message(chat.id, f"Pay {name}.", client_id=name)
                mine.append(name)
                self.times.append(monotonic())
                async with self._more:
                    self._more.notify_all()
                await self._engine.wait(chat.id, timeout=120)

    async def check(self) -> None:
        """Check that every acknowledged question is stored once, in a valid chat."""
        for chat_id, names in self.acknowledged.items():
            assert (await self._engine.wait(chat_id, timeout=120)).state == "waiting"
            messages = await self._engine.messages(chat_id)
            assert [each.text for each in messages if each.role == "user"] == [f"Pay {name}." for name in names]
            assert (await self._engine.verify(chat_id)).ok


@pytest.mark.parametrize("lost", ["killed", "frozen", "silent"])
async def test_failover_to_a_synchronous_standby_loses_nothing(lost: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also, no tool runs twice, and chats continue soon after the promotion."""
    paid: list[str] = []

    @tool
    async def pay(context: ToolContext) -> str:
        """Pay."""
        paid.append(f"{context.chat_id} {context.call_id}")
        return "paid"

    def answer(request: ModelRequest) -> Reply:
        last = request.messages[-1]
        return Reply("It is paid.") if last.role == "tool" else Reply(calls=[Call("pay", {}, id=f"of {last.text}")])

    async with AsyncExitStack() as stack:
        primary = stack.enter_context(Server.running())
        standby = stack.enter_context(primary.standby())
        proxy = await stack.enter_async_context(SilentProxy.to(f"{primary.socket}/.s.PGSQL.5432"))
        hosts = f"host=127.0.0.1,{standby.socket}&port={proxy.port},5432&target_session_attrs=primary"
        url = f"postgresql://postgres@/postgres?{hosts}&schema=turnwise"
        engine = await stack.enter_async_context(Engine(url, model=ScriptedModel(answer), tools=[pay]))
        load, over = Load(engine), anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(load.talk, over)
            await load.reach(8)
            if lost == "killed":
                await primary.stop()
            elif lost == "frozen":
                primary.freeze()
                stack.callback(primary.thaw)
            else:
                proxy.fall_silent()
            await anyio.to_thread.run_sync(standby.promote)
            promoted, before = monotonic(), len(load.times)
            await load.reach(before + 8)
            over.set()
        await load.check()
        assert load.times[before] - promoted < SUSPECT_AFTER_S + CONNECT_S + SLACK_S
        assert len(paid) == len({*paid})
        assert "Traceback" not in caplog.text


async def test_old_primary_is_not_used_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A promoted standby exists while the old primary takes writes; the engine refuses the first host in the URL."""
    monkeypatch.setattr(servers, "AVOID_S", 0)
    with Server.running() as old, old.standby() as new:
        hosts = f"host={old.socket},{new.socket}&target_session_attrs=primary"
        url = f"postgresql://postgres@/postgres?{hosts}&schema=turnwise"
        async with Engine(url, model="demo", settings=Settings(run_worker=False)) as engine:
            chat = await engine.create_chat()
            old.freeze()
            try:
                await anyio.to_thread.run_sync(new.promote)
                await engine.rename(chat.id, "at the new one")
            finally:
                old.thaw()
            old.sql("ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()")
            for number in range(3):
                new.cut()
                await engine.rename(chat.id, f"still there {number}")
            assert "still there" not in old.sql("SELECT body FROM turnwise.profiles")
        assert "old_primary_refused" in caplog.text


async def test_commits_that_are_taken_back_run_no_call_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The start of a call is lost with the primary while the call runs; the checkpoints show the loss."""
    runs: list[str] = []
    go_on = anyio.Event()

    @tool
    async def pay(context: ToolContext) -> str:
        """Pay."""
        runs.append(context.call_id)
        await go_on.wait()
        return "paid"

    replies = [Reply("I shall pay.", calls=[Call("pay", {}, id=f"call-{number}")]) for number in range(9)]
    model, key = PacedModel(replies), SigningKey.generate()
    published = tmp_path / "checkpoints"
    async with AsyncExitStack() as stack:
        primary = stack.enter_context(Server.running())
        standby = stack.enter_context(primary.standby(synchronous=False))
        hosts = f"host={primary.socket},{standby.socket}&target_session_attrs=primary"
        url = f"postgresql://postgres@/postgres?{hosts}&schema=turnwise"
        options = {"tools": [pay], "checkpoints": Checkpoints(key, published, every=1)}
        engine = await stack.enter_async_context(Engine(url, model=model, **options))
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Pay.")
        model.allow(1)
        await seconds_until(lambda: bool(standby.sql("SELECT to_regclass('turnwise.chats')")))
        await seconds_until(lambda: standby.sql("SELECT state FROM turnwise.chats") == "streaming")
        standby.stop()
        model.allow(9)
        await engine.wait(chat.id, until={ChatState.executing_tools})
        version = (await engine.get_chat(chat.id)).version
        await seconds_until(lambda: bool(runs) and f'"count":{version},' in published.read_text())
        await primary.stop()
        standby.start()
        await anyio.to_thread.run_sync(standby.promote)
        go_on.set()
        compared = {"checkpoints": published.read_text(), "public_key": key.public_pem}
        found = [each.issues[0].column async for each in engine.diagnose(**compared) if each.chat_id == chat.id]
        assert found == ["audit.hash"]
        model.allow(99)
        resting = await engine.wait(chat.id, timeout=60)
        assert resting.settled
        assert len(runs) == len({*runs})
        assert (await engine.verify(chat.id)).ok
    assert "store_went_back" in caplog.text


# A network that drops packets


@pytest.fixture
async def proxy(postgres: Server) -> AsyncIterator[SilentProxy]:
    async with SilentProxy.to(f"{postgres.socket}/.s.PGSQL.5432") as proxy:
        yield proxy


@pytest.mark.parametrize("busy", ["a model", "a tool", "nothing"])
async def test_engine_ends_while_its_database_is_silent(postgres: Server, proxy: SilentProxy, busy: str) -> None:
    """The engine closes within `shutdown_grace` + 5 s, in any state; a call waits for 19 s."""
    running = anyio.Event()

    @tool
    async def work() -> str:
        """Work."""
        running.set()
        await anyio.sleep_forever()
        return ""

    model = GatedModel(Reply("never")) if busy == "a model" else ScriptedModel([Reply(calls=[Call("work", {})])])
    schema = postgres.new_url("silent").rpartition("&")[2]
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?{schema}"
    engine = Engine(url, model=model, tools=[work], settings=Settings(shutdown_grace=1))
    await engine.__aenter__()
    chat = await engine.create_chat()
    if busy != "nothing":
        await engine.send_message(chat.id, "Go.")
        await engine.wait(chat.id, until={"streaming" if busy == "a model" else "executing_tools"})
    if busy == "a tool":
        await running.wait()
    proxy.fall_silent()
    await anyio.sleep(0.3)  # noqa: ASYNC251, RUF100 - gives pollers time to start
    started = monotonic()
    await engine.__aexit__()
    assert monotonic() - started < 1 + 5 + SLACK_S


async def test_silent_network_ends_tools_only_with_their_lease(postgres: Server, proxy: SilentProxy) -> None:
    """A shorter outage ends no tools, although two workers check each other's leases afterwards."""
    started, ended = anyio.Semaphore(0), list[float]()

    @tool(timeout=600)
    async def work() -> str:
        """Work."""
        started.release()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(monotonic())
        return ""

    schema = postgres.new_url("leases").rpartition("&")[2]
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?{schema}"
    settings = Settings(lease=10 + SLACK_S, renew_every=2, shutdown_grace=0)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            model = ScriptedModel([Reply(calls=[Call("work", {})])])
            engine = await stack.enter_async_context(Engine(url, model=model, tools=[work], settings=settings))
            await engine.send_message((await engine.create_chat()).id, "Go.")
            await started.acquire()
        proxy.fall_silent()
        await anyio.sleep(SUSPECT_AFTER_S)  # noqa: ASYNC251, RUF100 - the outage
        proxy.speak()
        await anyio.sleep(settings.lease + settings.renew_every)  # noqa: ASYNC251, RUF100 - until no lease is doubted
        assert ended == []
        proxy.fall_silent()
        silent_at = monotonic()
        await seconds_until(lambda: len(ended) == 2)
        assert max(ended) - silent_at < settings.lease + settings.poll_interval + SLACK_S


async def test_calls_to_a_silent_server_end_and_begin_again(
    postgres: Server, proxy: SilentProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Suspected after 5 s, each attempt ends 4 s later, retries last 10 s; calls succeed with the network."""
    schema = postgres.new_url("silent").rpartition("&")[2]
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?{schema}"
    async with Engine(url, model="demo", settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        proxy.fall_silent()
        started = monotonic()
        with pytest.raises(StoreError, match="cannot be reached") as refused:
            await engine.get_chat(chat.id)
        took = monotonic() - started
        assert refused.value.passing
        least = SUSPECT_AFTER_S + CONNECT_S + RETRY_S
        assert least - SUSPECT_AFTER_S < took < least + CONNECT_S + SLACK_S
        assert "server_silent" in caplog.text
        proxy.speak()
        started = monotonic()
        await engine.get_chat(chat.id)
        assert monotonic() - started < SLACK_S


# Clients that vanish

ENGINE = """
import asyncio, sys
from turnwise import Engine, Settings
from turnwise.persistence.postgres.store import PostgresStore

async def main():
    async with Engine(PostgresStore(sys.argv[1], poll_interval=1), model="demo") as engine:
        chats = [await engine.create_chat() for _ in range(3)]
        async def use(chat):
            while True:
                await engine.get_chat(chat.id)
        tasks = [asyncio.create_task(use(chat)) for chat in chats]
        print("ready", flush=True)
        await asyncio.gather(*tasks)

asyncio.run(main())
"""
FOLLOWERS = """
import socket, sys, time

open_ones = []
for _ in range(20):
    subscriber = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    request = f"GET /chats/{sys.argv[3]}/events HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer ada-token\\r\\n\\r\\n"
    subscriber.sendall(request.encode())
    subscriber.recv(1000)
    open_ones.append(subscriber)
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def running(there: Machine, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program on a host."""
    command = there.command(sys.executable, "-W", "ignore", "-c", program, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert await anyio.to_thread.run_sync(process.stdout.readline) == "ready\n"


@needs_namespaces
async def test_server_ends_sessions_of_a_vanished_process() -> None:
    """The server ends pooled sessions and the listening one, busy or idle, which frees the worker's locks."""
    with machine() as there, Server.running() as first, first.standby(address=there.here) as server:
        await anyio.to_thread.run_sync(server.promote)
        sessions = f"SELECT count(*) FROM pg_stat_activity WHERE client_addr = '{there.address}'"  # noqa: S608 - ours
        with running(there, ENGINE, f"postgresql://postgres@{there.here}/postgres") as process:
            await ready(process)
            await seconds_until(lambda: int(server.sql(sessions)) >= 3)
            there.cut_off()
            assert await seconds_until(lambda: server.sql(sessions) == "0") < GONE_AFTER_S + SLACK_S


@needs_namespaces
async def test_service_closes_connections_of_vanished_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would count against their principal, and use memory, for a quarter of an hour."""
    monkeypatch.setattr(import_module("turnwise.service.connections"), "GONE_AFTER_S", 5)
    with machine() as there, socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        async with serving(listener, settings=ServiceSettings()) as client:
            chat = (await client.post("/chats", json={})).json()["id"]
            with running(there, FOLLOWERS, there.here, str(port), chat) as process:
                await ready(process)
                there.cut_off()
                open_ones = ["ss", "-Htn", "state", "established", "dst", there.address]
                assert await seconds_until(lambda: not subprocess.check_output(open_ones)) < 5 + SLACK_S
            signal.raise_signal(signal.SIGTERM)
