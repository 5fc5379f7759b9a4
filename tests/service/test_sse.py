"""A chat's events as server-sent events: what is told, and what is said while there is nothing to tell."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx
import pytest
from fastapi import FastAPI
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.types import Message

from support.served import Served, listening
from turnwise import Engine
from turnwise.service import event_stream, sse
from turnwise.service.sse import Stream, event_bytes

GREETING: Final = b": turnwise\nretry: 1000\n\n"
PING: Final = b": ping\n\n"
Pieces = Callable[..., AsyncIterator[bytes]]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("sqlite://", model="demo") as opened:
        yield opened


def written(event: ServerSentEvent) -> bytes:
    """Spell an event as the standard has it."""
    lines = {"": event.comment, "event": event.event, "data": event.raw_data, "id": event.id, "retry": event.retry}
    return b"".join(f"{name}: {said}\n".encode() for name, said in lines.items() if said is not None) + b"\n"


async def pieces_of_stream(*args: Any, **options: Any) -> AsyncGenerator[bytes]:
    async for event in event_stream(*args, **options):
        yield written(event)


BOTH: Final = pytest.mark.parametrize("pieces", [event_bytes, pieces_of_stream], ids=["bytes", "events"])


async def asked(engine: Engine) -> str:
    """Return a chat in which a question was answered."""
    chat = await engine.create_chat()
    await engine.ask(chat.id, "Hello!")
    return chat.id


def numbers(told: list[bytes]) -> list[int]:
    return [int(piece.rpartition(b"id: ")[2]) for piece in told if b"\nid: " in piece]


@BOTH
async def test_stream_has_every_event_in_order(engine: Engine, pieces: Pieces) -> None:
    chat_id = await asked(engine)
    stored = [event async for event in engine.events(chat_id, follow=False)]
    told = [piece async for piece in pieces(engine, chat_id, follow=False)]

    assert told[0] == GREETING
    assert numbers(told) == [event.seq for event in stored] == list(range(1, len(stored) + 1))
    assert told[-1] == b": end\n\n"
    for piece, event in zip(told[1:-1], stored, strict=True):
        head, data, number, *end = piece.decode().split("\n")
        assert (head, number, end) == (f"event: {event.kind}", f"id: {event.seq}", ["", ""])
        assert json.loads(data.removeprefix("data: "))["seq"] == event.seq


@BOTH
async def test_stream_follows_until_the_service_stops(engine: Engine, pieces: Pieces) -> None:
    """Not even a chat that rests ends it; its last word is where to come back."""
    chat_id = await asked(engine)
    last = (await engine.transcript(chat_id)).last_seq
    told: list[bytes] = []
    with anyio.fail_after(60):
        async for piece in pieces(engine, chat_id):
            told.append(piece)
            if numbers([piece]) == [last]:
                await engine.ask(chat_id, "And?")
                newest = (await engine.transcript(chat_id)).last_seq
            if last < max(numbers([piece]), default=0) == newest:
                engine.release_followers()
    assert numbers(told) == list(range(1, newest + 1))
    assert told[-1] == b'event: reconnect\ndata: {"after": %d}\n\n' % newest


@BOTH
async def test_unknown_chat_is_a_problem_event(engine: Engine, pieces: Pieces) -> None:
    greeting, told = [piece async for piece in pieces(engine, "c1")]
    head, data, *end = told.decode().split("\n")
    assert (greeting, head, end) == (GREETING, "event: problem", ["", ""])
    problem = json.loads(data.removeprefix("data: "))
    assert (problem["type"], problem["status"]) == ("urn:turnwise:problem:chat-not-found", 404)


async def test_event_stream_works_in_a_fastapi_route(demo: Served, ada: httpx.AsyncClient) -> None:
    chat_id = (await ada.post("/chats", json={})).json()["id"]
    await demo.engine.ask(chat_id, "Hello!")
    app = FastAPI()

    @app.get("/mine", response_class=EventSourceResponse)
    async def mine() -> AsyncIterator[ServerSentEvent]:
        async for event in event_stream(demo.engine, chat_id, follow=False):
            yield event

    async with listening(app) as url, httpx.AsyncClient(base_url=url) as client:
        own = await client.get("/mine")
    served = await ada.get(f"/chats/{chat_id}/events", params={"follow": False})
    assert own.content == served.content
    assert served.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (served.headers["cache-control"], served.headers["x-accel-buffering"]) == ("no-cache", "no")


class Reader:
    """Takes what a response sends."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.pinged = anyio.Event()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    async def send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)
        if message.get("body") == PING:
            self.pinged.set()

    async def read(self, stream: Stream) -> None:
        async def receive() -> Message:
            await anyio.sleep_forever()
            raise AssertionError

        with anyio.fail_after(60):
            await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, self.send)


async def test_quiet_stream_sends_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first piece as between two of them, once in a while, and no longer than it lasts."""
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.2)
    reader = Reader()

    async def pieces() -> AsyncGenerator[bytes]:
        await reader.pinged.wait()
        yield b"one"
        yield b"two"
        reader.pinged = anyio.Event()
        await reader.pinged.wait()
        yield b"three"

    await reader.read(Stream(pieces(), {"X-Beside": "yes"}))
    assert [body for body in reader.bodies if body != PING] == [b"one", b"two", b"three", b""]
    for piece in (b"one", b"three"):
        assert reader.bodies[reader.bodies.index(piece) - 1] == PING
    first, *between, last = [message.get("more_body") for message in reader.sent]
    assert (first, {*between}, last) == (None, {True}, False)
    assert dict(reader.sent[0]["headers"])[b"x-beside"] == b"yes"
    assert reader.sent[0]["status"] == 200
