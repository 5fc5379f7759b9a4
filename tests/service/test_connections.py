"""Connections to `serve` without a valid token: each has a deadline, and their number is limited."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress

import pytest
from tests.service.test_server import serving

from turnwise.service import ServiceSettings


async def answer_to(listener: socket.socket, sent: bytes, then: bytes = b"") -> bytes:
    """Send bytes on a new connection, more once it answers, and return all answers until the service closes it."""
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


@pytest.mark.parametrize(
    ("sent", "then"),
    [(b"", b""), (b"GET / HTTP/1.1\r\nHost:", b""), (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /")],
    ids=["none", "1", "2"],
)
async def test_headers_have_a_deadline(sent: bytes, then: bytes) -> None:
    """The deadline holds for the first request on a connection and for later ones, but not for open streams."""
    settings = ServiceSettings(header_patience=0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(listener, settings=settings) as client, asyncio.timeout(30):
            chat = (await client.post("/chats", json={})).json()["id"]
            async with client.stream("GET", f"/chats/{chat}/events") as stream:
                lines = stream.aiter_lines()
                assert (await answer_to(listener, sent, then)).count(b"HTTP/1.1 200") == sent.count(b"healthz")
                await client.post(f"/chats/{chat}/messages", json={"content": "hi"})
                while await anext(lines) != "event: turn_finished":
                    pass
            signal.raise_signal(signal.SIGTERM)


async def test_oldest_unauthenticated_connection_is_closed() -> None:
    settings = ServiceSettings(anonymous_connections=2, header_patience=60)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(listener, settings=settings) as client, asyncio.timeout(30):
            chat = (await client.post("/chats", json={})).json()["id"]
            async with client.stream("GET", f"/chats/{chat}/events") as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                others = [asyncio.create_task(answer_to(listener, b"GET")) for _ in range(9)]
                closed, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
                await client.post(f"/chats/{chat}/messages", json={"content": "hi"})
                while await anext(lines) != "event: turn_finished":
                    pass
            assert closed
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait(others)
