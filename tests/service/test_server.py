"""A server in this process: its options for uvicorn, its shutdown, and its clean-up."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
import structlog

from support.served import GENEROUS, TOKENS
from support.stores import Stuck
from turnwise import Engine
from turnwise.service import ServiceSettings, serve
from turnwise.sockets import end_if_lost

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
AS_ADA: Final = {"Authorization": "Bearer ada-token"}


@asynccontextmanager
async def serving(listener: socket.socket, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve, and wait at the end of the block until a signal has stopped the server."""
    is_path = listener.family == socket.AF_UNIX
    transport = httpx.AsyncHTTPTransport(uds=listener.getsockname()) if is_path else None
    url = "http://here" if is_path else f"http://127.0.0.1:{listener.getsockname()[1]}"
    engine = Engine("sqlite://", model="demo")
    async with (
        httpx.AsyncClient(base_url=url, headers=AS_ADA, timeout=60, transport=transport) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(partial(serve, engine, auth=TOKENS, sockets=[listener], log_level="error", **options))
        with anyio.fail_after(60):
            while not await _is_ready(client):  # noqa: ASYNC110 - no event
                await anyio.sleep(0.01)
            yield client


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("number", SIGNALS)
async def test_signal_stops_server_and_handlers_return(number: signal.Signals) -> None:
    before = {known: signal.getsignal(known) for known in SIGNALS}
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = ServiceSettings(body_limit_bytes=100, shutdown_seconds=60)
        async with serving(listener, settings=settings) as client:
            chat = await client.post("/chats", json={})
            long = await client.post("/chats", json={"title": "x" * 200})
            async with client.stream("GET", f"/chats/{chat.json()['id']}/events") as response:
                async for line in response.aiter_lines():
                    lines.append(line)
                    if line == "event: status":
                        signal.raise_signal(number)
    assert (chat.status_code, "server" in chat.headers, long.status_code) == (201, False, 413)
    assert [line for line in lines if line.startswith("event:")][-1] == "event: reconnect"
    assert {known: signal.getsignal(known) for known in SIGNALS} == before
    assert logging.getLogger("uvicorn.error").level == logging.ERROR


@pytest.mark.parametrize("number", SIGNALS[1:])
async def test_signal_stops_a_server_that_is_opening(number: signal.Signals) -> None:
    """Opening may wait for another process for any time."""
    store, opened = Stuck(), list[str]()
    before = {known: signal.getsignal(known) for known in SIGNALS}
    engine = Engine(store, model="demo")
    serving = partial(serve, engine, auth=TOKENS, sockets=[], log_level="error", opened=lambda: opened.append("yes"))
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serving)
            await store.waits.wait()
            signal.raise_signal(number)
    assert opened == []
    assert not engine.takes_followers
    assert {known: signal.getsignal(known) for known in SIGNALS} == before


async def test_server_listens_on_a_unix_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        async with serving(listener) as client:
            assert (await client.get("/principal")).json()["name"] == "ada"
            signal.raise_signal(signal.SIGTERM)


async def test_cut_off_reader_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, structlog.testing.capture_logs() as logs:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        async with serving(listener, settings=replace(GENEROUS, reader_timeout=0.05)) as client:
            logging.getLogger("uvicorn.error").addHandler(caplog.handler)
            long = [{"role": "user", "content": "x" * 90_000}] * 10
            chat = (await client.post("/chats", json={"history": long})).json()["id"]
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(listener.getsockname())
                head = (f"GET /chats/{chat}/events HTTP/1.1", "Host: x", f"Authorization: {AS_ADA['Authorization']}")
                slow.sendall("\r\n".join([*head, "", ""]).encode())
                with anyio.fail_after(60):
                    while "reader_cut_off" not in [log["event"] for log in logs]:  # noqa: ASYNC110 - no event
                        await anyio.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert [log["event"] for log in logs].count("reader_cut_off") == 1
    assert caplog.messages == []


# Connections without a valid token


async def answer_to(listener: socket.socket, sent: bytes, then: bytes = b"") -> bytes:
    """Send bytes on a new connection, more after the first answer; return all answers until the service closes it."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(sent)
    answer = b""
    with suppress(ConnectionResetError):
        while piece := await reader.read(10_000):
            answer += piece
            writer.write(then)
            then = b""
    writer.close()
    return answer


@asynccontextmanager
async def beside_a_stream(settings: ServiceSettings) -> AsyncIterator[socket.socket]:
    """Serve until the block ends; an open stream of a chat must last as long."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(listener, settings=settings) as client, asyncio.timeout(120):
            chat = (await client.post("/chats", json={})).json()["id"]
            async with client.stream("GET", f"/chats/{chat}/events") as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                yield listener
                await client.post(f"/chats/{chat}/messages", json={"content": "hi"})
                while await anext(lines) != "event: turn_finished":
                    pass
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("sent", "then"),
    [(b"", b""), (b"GET / HTTP/1.1\r\nHost:", b""), (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /")],
    ids=["none", "1", "2"],
)
async def test_headers_have_a_deadline(sent: bytes, then: bytes) -> None:
    """The deadline applies to the first request on a connection and to later ones, but not to open streams."""
    async with beside_a_stream(ServiceSettings(header_timeout=1)) as listener:
        assert (await answer_to(listener, sent, then)).count(b"HTTP/1.1 200") == sent.count(b"healthz")


async def test_oldest_unauthenticated_connection_is_closed() -> None:
    async with beside_a_stream(ServiceSettings(anonymous_connections=2, header_timeout=60)) as listener:
        others = [asyncio.create_task(answer_to(listener, b"GET")) for _ in range(9)]
        closed, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    assert closed
    await asyncio.wait(others)


async def test_kernel_ends_connections_of_vanished_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber whose packets vanish holds a stream of its principal, and memory, until then."""
    limits: list[int] = []

    def noted(transport: asyncio.Transport, after_s: int) -> None:
        end_if_lost(transport, after_s)
        accepted = transport.get_extra_info("socket")
        limits.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        limits.append(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    monkeypatch.setattr(import_module("turnwise.service.connections"), "end_if_lost", noted)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(listener, settings=ServiceSettings()) as client:
            await client.get("/healthz")
            signal.raise_signal(signal.SIGTERM)
    assert limits == [45_000, 1]
