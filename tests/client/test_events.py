"""How a client reads the stream of a chat's events, and reads on when it breaks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import httpx
import pytest
from tests.client.client_clock import ClientClock

from support.wire.server import Answer, Server, problem
from turnwise import TurnwiseError
from turnwise.client import BadAnswer, Client, ClientSettings, RateLimited, ServiceUnreachable
from turnwise.client.events import _server_sent_events
from turnwise.states.errors import EngineClosed


def status(seq: int) -> str:
    data = {"kind": "status", "chat_id": "c1", "seq": seq, "state": "waiting"}
    return f"id: {seq}\nevent: status\ndata: {json.dumps(data)}\n\n"


END = ": end\n\n"
LAST = Answer([status(9), END])
ONCE = ClientSettings(patience=0)
TWICE = ClientSettings(first_delay=1, max_delay=1, patience=1.5)


async def read(server: Server, settings: ClientSettings = TWICE, **asked: Any) -> list[int]:
    """Return the numbers of the events that a client is given."""
    async with Client(server.url, token="t", settings=settings) as client:
        with anyio.fail_after(60):
            return [event.seq async for event in client.events("c1", **{"follow": False, **asked})]


async def test_each_event_comes_once_over_reconnects(server: Server, clock: ClientClock) -> None:
    seen = [[status(1), status(2)], [status(2), status(3)], [status(1), status(4)], [status(5)]]
    server.script = [*(Answer(pieces, end="drop") for pieces in seen), Answer([status(5), status(6), END])]
    assert await read(server) == [1, 2, 3, 4, 5, 6]
    assert [one.path.partition("?")[2].partition("&")[0] for one in server.asked] == [
        "after=0", "after=2", "after=3", "after=4", "after=5"
    ]  # fmt: skip


async def test_following_stream_reconnects_after_its_end(server: Server, clock: ClientClock) -> None:
    server.script = [Answer([status(9)]), Answer([status(10)])]
    async with Client(server.url, token="t", settings=TWICE) as client, aclosing(client.events("c1")) as events:
        assert [(await anext(events)).seq for _ in range(2)] == [9, 10]
    with pytest.raises(ServiceUnreachable) as ended:
        await read(server, ONCE, follow=True)
    assert vars(ended.value) == {"url": server.url, "problem": "the stream ends early", "sent": False}


async def test_stream_waits_retry_after(server: Server, clock: ClientClock) -> None:
    limited = Answer.refusal(429, "rate-limited", limit="1", retry_after=7)
    closed = Answer.refusal(503, "engine-closed", problem="it stops")
    server.script = [limited, closed, LAST]
    assert await read(server, ClientSettings(first_delay=1, patience=60)) == [9]
    assert clock.slept == [7, 2]
    server.script = [limited]
    with pytest.raises(RateLimited):
        await read(server, ClientSettings(patience=6))


RECONNECT = 'event: reconnect\ndata: {"after": 0}\n\n'
DELETED = problem("chat-deleted", chat_id="c1", deleted_at="2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("answer", "kind", "facts"),
    [
        (Answer.refusal(410, "chat-not-found", chat_id="c1"), "ChatNotFound", {"chat_id": "c1"}),
        (Answer([f"event: problem\ndata: {json.dumps(DELETED)}\n\n"]), "ChatDeleted", {"chat_id": "c1"}),
        (
            Answer(["{}"], headers={"content-type": "text/html"}),
            "BadAnswer",
            {"problem": "no stream of events, but 'text/html'"},
        ),
        (Answer([b'event: status\ndata: {"kind": "\xff"}\n\n']), "BadAnswer", {}),
        (Answer(["event: problem\ndata: 7\n\n"]), "BadAnswer", {}),
    ],
)
async def test_problem_ends_the_stream(server: Server, answer: Answer, kind: str, facts: dict[str, Any]) -> None:
    server.script = [answer]
    with pytest.raises(TurnwiseError) as told:
        await read(server)
    assert type(told.value).__name__ == kind
    assert vars(told.value).items() >= facts.items()
    assert len(server.asked) == 1
    if isinstance(told.value, BadAnswer):
        assert told.value.url == f"{server.url}/chats/c1/events?after=0&follow=false&until_rest=false"


async def test_reconnect_event_is_followed(server: Server, clock: ClientClock) -> None:
    server.script = [Answer([status(1), RECONNECT, status(2)]), LAST]
    assert await read(server) == [1, 9]
    server.script = [Answer([RECONNECT])]
    with pytest.raises(EngineClosed, match="the service stops; the stream goes on after the last event, once there is"):
        await read(server, ONCE)


async def test_silent_stream_is_dead(server: Server) -> None:
    server.script = [Answer([status(1)], end="silence")]
    with pytest.raises(ServiceUnreachable) as dead:
        await read(server, ClientSettings(patience=0, silence=0.05))
    assert dead.value.problem == "ReadTimeout"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("event: a\ndata: {}\n\n", [("a", b"{}")]),
        ("event:a\r\ndata:{}\r\n\r\n", [("a", b"{}")]),
        (
            "id: 1\nevent: a\n: still there\n:\ndata: [1,\ndata: 2]\n\nevent: b\ndata: {}\n\n",
            [("a", b"[1,2]"), ("b", b"{}")],
        ),
        ("event: a\n\ndata: {}\n\n", []),
        ("event: a\ndata:  \u2028 x\x85\x0b\n\n", [("a", " \u2028 x\x85\x0b".encode())]),
        ("\n\n: hello\n\nevent: a\ndata: 1\n\n\n\n", [("a", b"1")]),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_sse_parser_accepts_any_chunking(body: str, told: list[tuple[str, bytes]], size: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        data = body.encode()
        for start in range(0, len(data), size):
            yield data[start : start + size]

    assert [one async for one in _server_sent_events(httpx.Response(200, content=pieces()))] == told


def chat_at(seq: int, state: str) -> Answer:
    facts: dict[str, Any] = {
        "id": "c1", "agent": "default", "state": state, "version": 1, "history_version": 1, "last_seq": seq, "turn": 0,
        "step": 0, "attempt": 0, "owner": None, "title": None, "metadata": {}, "archived": False, "last_error": None,
        "stop_reason": None, "usage": {}, "open_calls": [], "queued": 0, "settled": True, "parent": None,
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return Answer.of(facts)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("asked", [{"follow": True, "until_rest": True}, {"follow": False}])
@pytest.mark.parametrize("found", [chat_at(9, "waiting"), chat_at(2, "streaming")])
async def test_clean_cut_in_mid_turn_is_read_on(server: Server, asked: dict[str, Any], found: Answer) -> None:
    """The service has not said that this is the end, and the chat has gone on, or goes on."""
    if asked == {"follow": False}:
        found = chat_at(9, "waiting")
    server.script = [Answer([status(1), status(2)]), found, LAST]
    assert await read(server, **asked) == [1, 2, 9]
    assert [one.path.partition("?")[0] for one in server.asked] == ["/chats/c1/events", "/chats/c1", "/chats/c1/events"]


@pytest.mark.parametrize(
    ("asked", "state"), [({"follow": True, "until_rest": True}, "waiting"), ({"follow": False}, "streaming")]
)
async def test_missing_end_mark_is_checked_with_the_chat(server: Server, asked: dict[str, Any], state: str) -> None:
    server.script = [Answer([status(9)]), chat_at(9, state)]
    assert await read(server, **asked) == [9]
    assert len(server.asked) == 2
