"""A chat's events as server-sent events: events, and pings while there is none."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx
import pytest
from fastapi import FastAPI
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message

from support.served import Served, listening
from turnwise import Engine, FileNotFound, StoreError, TurnwiseError
from turnwise.http_problems import PROBLEM_AFTER, InvalidRequest
from turnwise.service import event_stream, sse
from turnwise.service.problems import build_problem
from turnwise.service.routes.streamed import read_lines, streamed
from turnwise.service.sse import Stream, stream_bytes

GREETING: Final = b": turnwise\nretry: 1000\n\n"
PING: Final = b": ping\n\n"
Pieces = Callable[..., AsyncIterator[bytes]]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("sqlite://", model="demo") as opened:
        yield opened


def written(event: ServerSentEvent) -> bytes:
    """Format an event by the standard."""
    lines = {"": event.comment, "event": event.event, "data": event.raw_data, "id": event.id, "retry": event.retry}
    return b"".join(f"{name}: {value}\n".encode() for name, value in lines.items() if value is not None) + b"\n"


async def pieces_of_stream(*args: Any, **options: Any) -> AsyncGenerator[bytes]:
    async for event in event_stream(*args, **options):
        yield written(event)


def event_bytes(engine: Engine, chat_id: str, *, after: int = 0, **options: Any) -> AsyncGenerator[bytes]:
    return stream_bytes(engine.events(chat_id, after=after, **options), after)


BOTH: Final = pytest.mark.parametrize("pieces", [event_bytes, pieces_of_stream], ids=["bytes", "events"])


async def asked(engine: Engine) -> str:
    """Return a chat with an answered question."""
    chat = await engine.create_chat()
    await engine.ask(chat.id, "Hello!")
    return chat.id


def numbers(stream: list[bytes]) -> list[int]:
    return [int(piece.rpartition(b"id: ")[2]) for piece in stream if b"\nid: " in piece]


@BOTH
async def test_stream_has_every_event_in_order(engine: Engine, pieces: Pieces) -> None:
    chat_id = await asked(engine)
    stored = [event async for event in engine.events(chat_id, follow=False)]
    stream = [piece async for piece in pieces(engine, chat_id, follow=False)]

    assert stream[0] == GREETING
    assert numbers(stream) == [event.seq for event in stored] == list(range(1, len(stored) + 1))
    assert stream[-1] == b": end\n\n"
    for piece, event in zip(stream[1:-1], stored, strict=True):
        head, data, number, *end = piece.decode().split("\n")
        assert (head, number, end) == (f"event: {event.kind}", f"id: {event.seq}", ["", ""])
        assert json.loads(data.removeprefix("data: "))["seq"] == event.seq


@BOTH
async def test_stream_follows_until_the_service_stops(engine: Engine, pieces: Pieces) -> None:
    """A resting chat does not end it; its last line sets the reconnection time."""
    chat_id = await asked(engine)
    last = (await engine.transcript(chat_id)).last_seq
    stream: list[bytes] = []
    with anyio.fail_after(60):
        async for piece in pieces(engine, chat_id):
            stream.append(piece)
            if numbers([piece]) == [last]:
                await engine.ask(chat_id, "And?")
                newest = (await engine.transcript(chat_id)).last_seq
            if last < max(numbers([piece]), default=0) == newest:
                engine.release_followers()
    assert numbers(stream) == list(range(1, newest + 1))
    assert stream[-1] == b'event: reconnect\ndata: {"after": %d}\n\n' % newest


@BOTH
async def test_unknown_chat_is_a_problem_event(engine: Engine, pieces: Pieces) -> None:
    greeting, last = [piece async for piece in pieces(engine, "c1")]
    head, data, *end = last.decode().split("\n")
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

    async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        own = await client.get("/mine")
    served = await ada.get(f"/chats/{chat_id}/events", params={"follow": False})
    assert own.content == served.content
    assert served.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (served.headers["cache-control"], served.headers["x-accel-buffering"]) == ("no-cache", "no")


class Reader:
    """Records what a response sends."""

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
    """Before its first piece and between pieces, at intervals, and only while it lasts."""
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


# Bodies that are read and sent piece by piece


def request_of(*pieces: bytes) -> Request:
    left = list(pieces)

    async def receive() -> Message:
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    return Request({"type": "http", "headers": []}, receive)


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b""], []),
        ([b"one\ntwo\n"], ["one\n", "two\n"]),
        ([b"one\ntwo"], ["one\n", "two"]),
        ([b"o", b"ne\n\ntw", b"", b"o\n"], ["one\n", "\n", "two\n"]),
        (["é\nü".encode()[:1], "é\nü".encode()[1:4], "é\nü".encode()[4:]], ["é\n", "ü"]),
    ],
)
async def test_body_is_read_line_by_line(pieces: list[bytes], lines: list[str]) -> None:
    assert [line async for line in read_lines(request_of(*pieces))] == lines


@pytest.mark.parametrize("pieces", [[b"\xff\n"], [b"one\n", b"\xc3"], [b"one\n\xc3", b"\n"]])
async def test_body_that_is_no_utf8_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        assert [line async for line in read_lines(request_of(*pieces))] == ["never"]
    assert refused.value.problems == ({"field": "body", "problem": "must be UTF-8"},)


async def broken(pieces: list[bytes], error: Exception) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    raise error


async def body_of(response: StreamingResponse, into: list[bytes]) -> None:
    async for piece in response.body_iterator:
        into += [piece.encode() if isinstance(piece, str) else bytes(piece)]


@pytest.mark.parametrize("error", [FileNotFound("c1", "0" * 64, "is damaged"), StoreError("secret")])
async def test_broken_body_ends_with_its_problem(error: TurnwiseError) -> None:
    """The body cannot pass for complete; the mark names the problem that an early failure would have returned."""
    response = await streamed(broken([b"so much", b" and"], error), media_type="a/b", headers={"ETag": "x"})
    body: list[bytes] = []
    with pytest.raises(type(error)):
        await body_of(response, body)
    content, _, problem = b"".join(body).partition(response.headers[PROBLEM_AFTER].encode())
    assert (content, response.headers["etag"]) == (b"so much and", "x")
    assert json.loads(problem) == build_problem(error)
    assert b"secret" not in problem
    another = await streamed(broken([b"so much"], error), media_type="a/b", headers={})
    assert another.headers[PROBLEM_AFTER] != response.headers[PROBLEM_AFTER]


async def test_file_is_served_as_an_attachment(demo: Served, ada: httpx.AsyncClient) -> None:
    chat = (await ada.post("/chats", json={})).json()["id"]
    upload: dict[str, Any] = {"content": b"<script>", "headers": {"Content-Type": "text/html"}}
    part = (await ada.post("/files", params={"chat": chat}, **upload)).json()
    assert (part["media_type"], part["size"], part.get("name")) == ("text/html", 8, None)
    got = await ada.get(f"/files/{part['blob']}", params={"chat": chat})
    assert got.content == b"<script>"
    assert {name: got.headers[name] for name in ("content-type", "content-disposition", "etag")} == {
        "content-type": "application/octet-stream",
        "content-disposition": f'attachment; filename="{part["blob"]}"',
        "etag": f'"{part["blob"]}"',
    }
    assert got.headers["x-content-type-options"] == "nosniff"
    for odd in ("0" * 63, "0" * 65, "A" * 64, "x"):
        refused = await ada.get(f"/files/{odd}", params={"chat": chat})
        assert (refused.status_code, refused.json()["problems"][0]["field"]) == (400, "path.digest"), odd


async def test_export_is_a_file_of_lines(ada: httpx.AsyncClient) -> None:
    chat = (await ada.post("/chats", json={})).json()["id"]
    exported = await ada.get(f"/chats/{chat}/export")
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert exported.headers["content-disposition"] == f'attachment; filename="{chat}.jsonl"'
