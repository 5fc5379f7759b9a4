"""A small HTTP server that answers by a script, faults included, and records its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

End = Literal["end", "drop", "silence"]
"""How an answer ends: complete, by closing the connection in the middle, or not at all."""


@dataclass(frozen=True)
class Answer:
    """An answer to one request. Without `pieces` it never starts."""

    pieces: Sequence[str | bytes] | None = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    end: End = "end"

    @classmethod
    def of(cls, body: Any, status: int = 200, **headers: str) -> Answer:
        """Return an answer that is one JSON document."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls([json.dumps(body)], status, {"content-type": "application/json", **named})

    @classmethod
    def refusal(cls, status: int, name: str, **fields: Any) -> Answer:
        """Return a refusal in the service's format."""
        return cls.of(problem(name, **fields), status, content_type="application/problem+json")


def problem(name: str, **fields: Any) -> dict[str, Any]:
    """Return the service's body of a problem."""
    return {"type": f"urn:turnwise:problem:{name}", "detail": "as it was said", **fields}


@dataclass
class Asked:
    """One request, as received."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all pieces are sent."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the client closed the connection."""
    gone_at: float = 0
    """The loop's time when the client closed it."""

    @property
    def body(self) -> dict[str, Any]:
        """The content, which is JSON."""
        body: dict[str, Any] = json.loads(self.content)
        return body


class Server:
    """Answers requests in the order of its script; the last answer is repeated."""

    def __init__(self) -> None:
        self.url = ""
        self.script: list[Answer] = []
        self.asked: list[Asked] = []
        self.arrived = asyncio.Condition()
        self.connections: set[asyncio.Task[None]] = set()

    async def request(self, number: int) -> Asked:
        """Return the request of that number, from 1, once it is there."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.asked) >= number)
        return self.asked[number - 1]

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until a side closes it."""
        connection = asyncio.current_task()
        assert connection is not None
        self.connections.add(connection)
        try:
            while (asked := await _read(reader)) is not None:
                async with self.arrived:
                    answer = self.script[min(len(self.asked), len(self.script) - 1)]
                    self.asked.append(asked)
                    self.arrived.notify_all()
                await _write(writer, answer)
                asked.answered.set()
                if answer.pieces is None or answer.end == "silence":
                    await reader.read()
                    asked.gone_at = asyncio.get_running_loop().time()
                    asked.gone.set()
                if answer.pieces is None or answer.end != "end":
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            self.connections.discard(connection)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """Run a server on a free port of this machine."""
    server = Server()
    listener = await asyncio.start_server(server.converse, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        connections = list(server.connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readline()
    if not head:
        return None
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    is_chunked = headers.get("transfer-encoding") == "chunked"
    content = await (_chunks(reader) if is_chunked else reader.readexactly(int(headers.get("content-length", "0"))))
    method, path, _ = head.decode().split(" ")
    return Asked(method, path, headers, content)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    content = b""
    while length := int(await reader.readline(), 16):
        content += await reader.readexactly(length)
        await reader.readline()
    await reader.readline()
    return content


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    if answer.pieces is None:
        return
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for piece in answer.pieces:
        data = piece if isinstance(piece, bytes) else piece.encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
    if answer.end == "end":
        writer.write(b"0\r\n\r\n")
    await writer.drain()
