"""Several servers in one URL, and silent servers: their order, and when calls end."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any

import anyio
import asyncpg
import pytest

from support.processes.postgres_server import Server as Postgres
from support.processes.silent_proxy import SilentProxy
from turnwise.persistence.postgres import pool, servers
from turnwise.persistence.postgres.pool import Pool
from turnwise.persistence.postgres.servers import servers_of
from turnwise.persistence.postgres.timeouts import GONE_AFTER_S
from turnwise.states.errors import StoreError


@pytest.mark.parametrize(
    ("rest", "found", "attributes"),
    [
        ("h/db", [("h", 5432)], [None]),
        ("u:a%2Cb@h:1,[::1]:2,i/db", [("h", 1), ("::1", 2), ("i", 5432)], [None]),
        ("h,i/db?port=7", [("h", 7), ("i", 7)], [None]),
        ("/db?host=/a,b&port=1,2&target_session_attrs=primary", [("/a", 1), ("b", 2)], ["primary"]),
        ("%2Fa%2Fb:9/db", [("/a/b", 9)], [None]),
        ("h,i/db?target_session_attrs=prefer-standby", [("h", 5432), ("i", 5432)], ["standby", "any"]),
        ("/db", [(None, None)], [None]),
        ("h,i/db?port=1,2,3", [(None, None)], [None]),
    ],
)
def test_servers_of_a_url(rest: str, found: list[Any], attributes: list[str | None]) -> None:
    assert servers_of(f"postgresql://{rest}") == (found, attributes)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Listen on a port and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        yield listener


def tries(listener: socket.socket) -> int:
    """Return how many connections were made to a silent port since the last call."""
    for count in itertools.count():
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
    raise AssertionError


@pytest.fixture
async def proxy(postgres: Postgres) -> AsyncIterator[SilentProxy]:
    async with SilentProxy.to(f"{postgres.socket}/.s.PGSQL.5432") as proxy:
        yield proxy


@pytest.fixture
async def make_pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Pool]]:
    """Make pools that soon suspect a server, and close them in the end."""
    monkeypatch.setattr(servers, "SUSPECT_AFTER_S", 0.2)
    async with AsyncExitStack() as stack:

        def pool(rest: str, **options: Any) -> Pool:
            new = Pool(f"postgresql://postgres@{rest}", size=3, schema="public", statement_timeout=30, **options)
            stack.push_async_callback(new.close)
            return new

        yield pool


async def one(connection: Any) -> Any:
    return await connection.fetchval("SELECT 1")


@pytest.mark.parametrize("order", ["silent first", "silent last"])
async def test_lost_host_has_a_time_of_its_own(
    make_pool: Callable[..., Pool], postgres: Postgres, silent: socket.socket, order: str
) -> None:
    """It is tried once; then the others come first for a while."""
    hosts = ["127.0.0.1", postgres.socket], [str(silent.getsockname()[1]), "5432"]
    if order == "silent last":
        hosts = hosts[0][::-1], hosts[1][::-1]
    opened = make_pool(f"/postgres?host={','.join(hosts[0])}&port={','.join(hosts[1])}")
    with anyio.fail_after(30):  # asyncpg would give it a minute
        await opened.open()
    assert tries(silent) == (order == "silent first")
    await asyncio.gather(*(opened.run(one) for _ in range(3)))
    assert tries(silent) == 0


async def test_first_time_out_ends_every_connection(
    make_pool: Callable[..., Pool], proxy: SilentProxy, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The server falls silent during calls, which continue at once with the next server."""
    opened = make_pool(f"/postgres?host=127.0.0.1,{postgres.socket}&port={proxy.port},5432")
    await opened.open()
    listener = await opened.connect()
    calls, is_silent = 0, anyio.Event()

    async def ask(connection: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            proxy.fall_silent()
            is_silent.set()
        await is_silent.wait()  # so that none ends before
        return await connection.fetchval("SELECT 1")

    with anyio.fail_after(60):
        await asyncio.gather(*(opened.run(ask) for _ in range(3)))
    assert calls == 6
    assert listener.is_closed()
    assert [message.partition(" ")[0] for message in caplog.messages] == ["server_silent"]
    assert "connections=4" in caplog.text


async def test_session_ended_during_set_up_is_made_again(
    make_pool: Callable[..., Pool], postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task may end it between two steps of asyncpg, as when the server became a standby."""
    opened = make_pool(f"/postgres?host={postgres.socket}")
    set_up, ended = opened._set_up, list[Any]()

    async def end_the_first(session: Any) -> None:
        if not ended:
            ended.append(session)
            session.terminate()
            session._protocol.bind_execute()
        await set_up(session)

    monkeypatch.setattr(opened, "_set_up", end_the_first)
    await opened.open()
    assert await opened.run(one) == 1
    assert ended[0].is_closed()


async def test_slow_answer_is_no_silence(make_pool: Callable[..., Pool], proxy: SilentProxy) -> None:
    """A slow server still accepts connections, and keeps the existing ones."""
    opened = make_pool(f"127.0.0.1:{proxy.port}/postgres")
    await opened.open()
    calls: list[object] = []

    async def ask(connection: Any) -> None:
        calls.append(connection)
        await connection.fetchval("SELECT pg_sleep(0.7)")

    await opened.run(ask)
    assert len(calls) == 1


async def test_queue_of_a_pooler_is_no_silence(
    make_pool: Callable[..., Pool], postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts a client that then waits for a server connection; the others keep theirs."""
    opened = make_pool(f"/postgres?host={postgres.socket}")
    await opened.open()
    set_up = opened._set_up

    async def queue(session: Any) -> None:
        await anyio.sleep(0.5)
        await set_up(session)

    monkeypatch.setattr(opened._servers, "_set_up", queue)
    used: list[Any] = []

    async def ask(connection: Any) -> None:
        used.append(connection.get_server_pid())
        if len(used) == 1:
            await opened.run(ask)
        await connection.fetchval("SELECT 1")

    await opened.run(ask)
    assert len({*used}) == 2
    assert len(used) == 2


async def test_calls_end_before_the_process_does(
    make_pool: Callable[..., Pool], proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer, the outcome of the calls is unknown."""
    for module, name in ((servers, "SUSPECT_AFTER_S"), (pool, "CLOSE_S")):
        monkeypatch.setattr(module, name, 600)  # nothing else ends a call, and closing would wait for it
    opened = make_pool(f"127.0.0.1:{proxy.port}/postgres")
    await opened.open()

    async def ask(connection: Any) -> None:
        proxy.fall_silent()
        opened.end_calls_within(0.05)
        await connection.fetchval("SELECT 1")

    with anyio.fail_after(30):  # the statement's own limit is 40 s
        with pytest.raises(StoreError, match="not known"):
            await opened.write(ask)
        await opened.close()


async def test_timeline_below_a_known_one_is_refused(
    make_pool: Callable[..., Pool],
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A replaced server that keeps running is a second primary; existing connections to it are closed."""
    opened = make_pool(f"/postgres?host={postgres.socket}")

    def show(timeline: str | None, cluster: str = "1") -> None:
        shown = "NULL" if timeline is None else f"'{timeline}'"
        monkeypatch.setattr(servers, "_TIMELINE", f"SELECT '{cluster}' AS cluster, {shown} AS timeline")

    show("0000000F")
    await opened.open()
    before = await opened.connect()
    show("00000010")
    after = await opened.connect()
    assert (before.is_closed(), after.timeline) == (True, 16)
    show("0000000F")
    for _ in range(2):
        with pytest.raises(ConnectionError, match="an old primary: its timeline is 15"):
            await opened.connect()
    assert [message.partition(" ")[0] for message in caplog.messages] == ["old_primary_refused"]
    for timeline, cluster in ((None, "1"), ("00000001", "another")):
        show(timeline, cluster)
        (await opened.connect()).terminate()
    assert not after.is_closed()


async def test_every_session_ends_when_its_packets_vanish(make_pool: Callable[..., Pool], proxy: SilentProxy) -> None:
    """Both kernels time out: at the server and here, for pooled sessions and for the listener."""
    opened = make_pool(f"127.0.0.1:{proxy.port}/postgres")
    await opened.open()
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    assert dict(zip(names, ("5", "2", "3", "11000"), strict=True)) == pool._KEPT_ALIVE

    async def limits(session: Any) -> list[int]:
        client = session._transport.get_extra_info("socket")
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        return [client.getsockopt(socket.IPPROTO_TCP, option) for option in options]

    listener = await opened.connect()
    for found in (await opened.run(limits), await limits(listener)):
        assert found == [5, 2, 3, GONE_AFTER_S * 1000]
    listener.terminate()


async def test_standbys_alone_are_waited_for(
    make_pool: Callable[..., Pool], postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that opens waits as any other call does, since a standby may be promoted."""
    monkeypatch.setattr(pool, "RETRY_S", 0.2)
    opened = make_pool(f"/postgres?host={postgres.socket}&target_session_attrs=standby")
    start = monotonic()
    with pytest.raises(StoreError, match=r"no server of the URL is what `target_session_attrs` asks for") as refused:
        await opened.open()
    assert monotonic() - start >= 0.2
    assert refused.value.passing
    assert isinstance(refused.value.__cause__, asyncpg.TargetServerAttributeNotMatched)
