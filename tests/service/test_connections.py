"""Connections of strangers to `serve`: each has a deadline, and there are only so many."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress

import pytest
from tests.service.test_server import serving

from turnwise.service import ServiceSettings


async def answer_to(listener: socket.socket, said: bytes, then: bytes = b"") -> bytes:
    """Send bytes on a new connection, more once it answers, and return all answers until the service closes it."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(said)
    answer = b""
    with suppress(ConnectionResetError):
        while piece := await reader.read(10_000):
            answer += piece
            writer.write(then)
            then = b""
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("said", "then"),
    [(b"", b""), (b"GET / HTTP/1.1\r\nHost:", b""), (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /")],
    ids=["none", "1", "2"],
)
async def test_headers_have_a_deadline(said: bytes, then: bytes) -> None:
    """Of the first request on a connection, and of a later one; a stream may be open for longer."""
    settings = ServiceSettings(header_patience=0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(listener, settings=settings) as client, asyncio.timeout(30):
            chat = (await client.post("/chats", json={})).json()["id"]
            async with client.stream("GET", f"/chats/{chat}/events") as stream:
                lines = stream.aiter_lines()
                assert (await answer_to(listener, said, then)).count(b"HTTP/1.1 200") == said.count(b"healthz")
                await client.post(f"/chats/{chat}/messages", json={"content": "hi"})
                while await anext(lines) != "event: turn_finished":
                    pass
            signal.raise_signal(signal.SIGTERM)


async def test_strangers_make_room_for_those_with_tokens() -> None:
    settings = ServiceSettings(anonymous_connections=2, header_patience=60)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(listener, settings=settings) as client, asyncio.timeout(30):
            chat = (await client.post("/chats", json={})).json()["id"]
            async with client.stream("GET", f"/chats/{chat}/events") as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                strangers = [asyncio.create_task(answer_to(listener, b"GET")) for _ in range(9)]
                closed, _ = await asyncio.wait(strangers, return_when=asyncio.FIRST_COMPLETED)
                await client.post(f"/chats/{chat}/messages", json={"content": "hi"})
                while await anext(lines) != "event: turn_finished":
                    pass
            assert closed
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait(strangers)
