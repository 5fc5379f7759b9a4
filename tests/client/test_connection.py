"""What goes over the wire for a request, which requests are sent again, and what is made of an answer."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from typing import Annotated, Any

import httpx
import pytest
from pydantic import AfterValidator

from support.wire.server import Answer, End, Server, problem
from turnwise import QueueFull, StoreError, TurnwiseError
from turnwise.client import BadAnswer, ClientSettings, RateLimited, ServiceFailed, ServiceUnreachable
from turnwise.client.connection import Connection, Request, _may_pass, pieces_of
from turnwise.states.errors import ChatUnreadable, EngineClosed, EngineInUse
from turnwise.states.messages import TextPart

URL = "http://a"
MARK = "0123abcd" * 4
AT_ONCE = ClientSettings(patience=0)
GET = Request(method="GET", path="/x", repeatable=True)
POST = Request(method="POST", path="/x")
KEYED = Request(method="POST", path="/x", repeatable=True)
CLOSED = Answer.refusal(503, "engine-closed", problem="it stops")
LIMITED = Answer.refusal(429, "rate-limited", limit="1", retry_after=0)
EXPIRED = Answer.refusal(401, "not-authenticated")
FORBIDDEN = Answer.refusal(403, "not-allowed", role="a", needed="b")
AWAY = Answer.refusal(503, "store-error", written="no")
DOUBTED = Answer.refusal(503, "store-error", written="unknown")


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture
async def connection(server: Server) -> AsyncIterator[Connection]:
    found = Connection(f"{server.url}/v1", "word", ClientSettings(first_delay=0))
    await found.open()
    yield found
    await found.close()


async def test_request_has_path_query_headers_and_body(server: Server, connection: Connection) -> None:
    server.script = [Answer.of({})]
    query, headers = {"a": 1, "b": None, "c": "d"}, {"If-Match": '"7"', "Idempotency-Key": None}
    told = {"content": (TextPart(text="\u00e4"),), "n": None}
    await connection.response_to(Request(method="PATCH", path="/chats/c1", query=query, headers=headers, body=told))
    await connection.response_to(Request(method="POST", path="/files", stream=body(b"one", b"two")))
    await connection.response_to(GET)
    whole, streamed, bare = server.asked

    assert (whole.method, whole.path) == ("PATCH", "/v1/chats/c1?a=1&c=d")
    assert whole.body == {"content": [{"type": "text", "text": "\u00e4", "metadata": None}], "n": None}
    assert (whole.headers["if-match"], whole.headers["content-type"]) == ('"7"', "application/json")
    assert "idempotency-key" not in whole.headers
    assert (streamed.method, streamed.path, streamed.content) == ("POST", "/v1/files", b"onetwo")
    assert (bare.method, bare.path, bare.content) == ("GET", "/v1/x", b"")
    assert "content-type" not in streamed.headers.keys() | bare.headers.keys()
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer word"}


@pytest.mark.parametrize(
    ("error", "once", "safe", "streamed"),
    [
        (ServiceUnreachable(URL, "x", sent=False), True, True, False),
        (ServiceUnreachable(URL, "x", sent=True), False, True, False),
        (ServiceFailed(503, "x"), False, True, False),
        (ServiceFailed(500, "x"), False, False, False),
        (RateLimited("x", 1), False, False, False),
        (QueueFull(3), False, False, False),
    ],
)
def test_retry_only_where_it_is_safe(error: TurnwiseError, once: bool, safe: bool, streamed: bool) -> None:
    requests = POST, GET, Request(method="POST", path="/files", stream=body())
    assert [_may_pass(error, request, sent=False) for request in requests] == [once, safe, streamed]


async def test_repeatable_request_is_retried(server: Server, connection: Connection) -> None:
    server.script = [CLOSED, Answer(["{"], end="drop"), Answer(["{"], 503, end="drop"), Answer.of({"a": "b"})]
    assert await connection.ask(GET, dict[str, str]) == {"a": "b"}
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("answer", "kind", "sent"),
    [
        (CLOSED, EngineClosed, None),
        (AWAY, StoreError, None),
        (DOUBTED, ServiceUnreachable, True),
        (Answer(["{"], 500, end="drop"), ServiceUnreachable, True),
    ],
)
async def test_other_requests_are_sent_once(
    server: Server, connection: Connection, answer: Answer, kind: type[TurnwiseError], sent: bool | None
) -> None:
    server.script = [answer, Answer.of({})]
    with pytest.raises(kind) as refused:
        await connection.ask(POST, dict[str, str])
    assert (len(server.asked), getattr(refused.value, "sent", None)) == (1, sent)


def _said_to_be_sent(error: TurnwiseError) -> bool:
    return isinstance(error, ServiceUnreachable) and error.sent and "nothing was written" not in str(error)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("last", "tries"),
    [*((last, 6) for last in (CLOSED, LIMITED, DOUBTED, Answer(["{"], end="drop"))), (EXPIRED, 2), (FORBIDDEN, 2)],
)
async def test_possibly_done_is_never_called_unwritten(server: Server, last: Answer, tries: int) -> None:
    """Whatever is said of a later try: that nothing was written is true of that one alone."""
    server.script = [Answer(["{"], end="drop"), last]
    connection = Connection(server.url, "word", ClientSettings())
    await connection.open()
    with pytest.raises(ServiceUnreachable) as unanswered:
        await connection.ask(KEYED, dict[str, str])
    await connection.close()
    assert _said_to_be_sent(unanswered.value)
    assert len(server.asked) >= tries


async def test_zero_patience_sends_once(server: Server) -> None:
    server.script = [CLOSED]
    connection = Connection(server.url, "word", AT_ONCE)
    with pytest.raises(EngineClosed, match="the client is not open; use it inside 'async with Client"):
        await connection.ask(GET, dict[str, str])
    await connection.open()
    with pytest.raises(EngineInUse):
        await connection.open()
    with pytest.raises(EngineClosed):
        await connection.ask(GET, dict[str, str])
    await connection.close()
    assert len(server.asked) == 1


def _refuse(value: str) -> str:
    raise TypeError(value)


@pytest.mark.parametrize(
    ("content", "answer", "problem"),
    [
        (b'{"a": {"b": 7}}', dict[str, dict[str, str]], "a.b: Input should be a valid string"),
        (b'{"a": "x"}', dict[str, Annotated[str, AfterValidator(_refuse)]], "what it says cannot be read (TypeError)"),
    ],
)
def test_unreadable_answer_is_named(content: bytes, answer: Any, problem: str) -> None:
    response = httpx.Response(200, content=content, request=httpx.Request("GET", "http://a/x"))
    with pytest.raises(BadAnswer) as refused:
        Connection(URL, "word", AT_ONCE).read(response, answer)
    assert vars(refused.value) == {"url": "http://a/x", "problem": problem}


@pytest.mark.parametrize("end", ["end", "drop"])
async def test_broken_off_body_raises_its_problem(server: Server, connection: Connection, end: End) -> None:
    """A proxy may make a clean end of a body that was cut off."""
    damaged = problem("chat-unreadable", column="messages.body", problem="gone")
    server.script = [Answer(["one", MARK + json.dumps(damaged)], headers={"X-Problem-After": MARK}, end=end)]
    async with aclosing(pieces_of(connection, GET)) as pieces:  # type: ignore[type-var]
        assert await anext(pieces) == b"one"
        with pytest.raises(ChatUnreadable, match="as it was said"):
            await anext(pieces)


async def test_connecting_has_a_limit_of_its_own() -> None:
    """A full queue of connections swallows what it is sent, as a network that drops packets does."""
    assert ClientSettings().connect_timeout == 5
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(2):
            knocking = waiting.enter_context(socket.socket())
            knocking.setblocking(False)  # noqa: FBT003 - its argument has no name
            knocking.connect_ex(full.getsockname())
        settings = ClientSettings(connect_timeout=0.1, patience=0)
        connection = Connection(f"http://127.0.0.1:{full.getsockname()[1]}", None, settings)
        await connection.open()
        with pytest.raises(ServiceUnreachable) as refused:
            await connection.response_to(GET)
        await connection.close()
    assert (refused.value.problem, refused.value.sent) == ("ConnectTimeout", False)
