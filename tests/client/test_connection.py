"""Requests on the wire, retries, and readings of answers."""

import dataclasses
import json
import math
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from typing import Annotated, Any

import httpx
import pytest
from pydantic import AfterValidator
from tests.client.client_clock import ClientClock

from support.wire.server import Answer, End, Server, problem
from turnwise import InvalidArgument, StoreError, TurnwiseError
from turnwise.client import BadAnswer, BodyTooLarge, ClientSettings, NotAllowed, RateLimited, ServiceFailed
from turnwise.client.connection import Connection, Request, read_pieces
from turnwise.client.errors import ServiceUnreachable, parse_error, parse_problem
from turnwise.client.requests import InterruptibleBody, decode_lines, encode_lines
from turnwise.client.settings import Backoff
from turnwise.http_problems import InvalidRequest, NotAuthenticated
from turnwise.states.errors import ChatUnreadable, EngineClosed, EngineInUse
from turnwise.states.messages import TextPart

URL = "http://a"
MARK = "0123abcd" * 4
AT_ONCE = ClientSettings(retry_timeout=0)
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
    content = {"content": (TextPart(text="\u00e4"),), "n": None}
    await connection.response_to(Request(method="PATCH", path="/chats/c1", query=query, headers=headers, body=content))
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
    """A later failure writes nothing, but the first try may have."""
    server.script = [Answer(["{"], end="drop"), last]
    connection = Connection(server.url, "word", ClientSettings())
    await connection.open()
    with pytest.raises(ServiceUnreachable) as unanswered:
        await connection.ask(KEYED, dict[str, str])
    await connection.close()
    assert _said_to_be_sent(unanswered.value)
    assert len(server.asked) >= tries


async def test_zero_retry_timeout_sends_once(server: Server) -> None:
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
        (b'{"a": "x"}', dict[str, Annotated[str, AfterValidator(_refuse)]], "its answer cannot be read (TypeError)"),
    ],
)
def test_unreadable_answer_is_named(content: bytes, answer: Any, problem: str) -> None:
    response = httpx.Response(200, content=content, request=httpx.Request("GET", "http://a/x"))
    with pytest.raises(BadAnswer) as refused:
        Connection(URL, "word", AT_ONCE).read(response, answer)
    assert vars(refused.value) == {"url": "http://a/x", "problem": problem}


@pytest.mark.parametrize("end", ["end", "drop"])
async def test_broken_off_body_raises_its_problem(server: Server, connection: Connection, end: End) -> None:
    """A proxy may end a truncated body cleanly."""
    damaged = problem("chat-unreadable", column="messages.body", problem="gone")
    server.script = [Answer(["one", MARK + json.dumps(damaged)], headers={"X-Problem-After": MARK}, end=end)]
    async with aclosing(read_pieces(connection, GET)) as pieces:  # type: ignore[type-var]
        assert await anext(pieces) == b"one"
        with pytest.raises(ChatUnreadable, match="as it was said"):
            await anext(pieces)


async def test_connecting_has_a_limit_of_its_own() -> None:
    """A full queue of connections drops packets, as a broken network does."""
    assert ClientSettings().connect_timeout == 5
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(2):
            knocking = waiting.enter_context(socket.socket())
            knocking.setblocking(False)  # noqa: FBT003 - its argument has no name
            knocking.connect_ex(full.getsockname())
        settings = ClientSettings(connect_timeout=0.1, retry_timeout=0)
        connection = Connection(f"http://127.0.0.1:{full.getsockname()[1]}", None, settings)
        await connection.open()
        with pytest.raises(ServiceUnreachable) as refused:
            await connection.response_to(GET)
        await connection.close()
    assert (refused.value.problem, refused.value.sent) == ("ConnectTimeout", False)


# How long a client waits before it tries again


async def waited(backoff: Backoff, clock: ClientClock) -> list[float]:
    """Return the wait before each try, until the last."""
    clock.slept.clear()
    while len(clock.slept) < 100 and await backoff.wait():
        pass
    return clock.slept.copy()


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(ClientSettings)])
def test_infinite_time_is_refused(name: str) -> None:
    for odd in (-1, math.inf, math.nan):
        with pytest.raises(InvalidArgument, match=f"^{name}: must be"):
            ClientSettings(**{name: odd})


async def test_waits_double_up_to_the_longest(clock: ClientClock) -> None:
    """After a response they start from the shortest again."""
    backoff = Backoff(ClientSettings())
    for began in (1000, 1056.3):
        assert await waited(backoff, clock) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5] * 10]
        assert clock.now == pytest.approx(began + 56.3), "after the next wait a minute would be over"
        backoff.reset()


@pytest.mark.parametrize(("retry_timeout", "tries"), [(0, 0), (3, 2), (3.5, 3), (4, 3)])
async def test_no_try_after_retry_timeout(clock: ClientClock, retry_timeout: float, tries: int) -> None:
    settings = ClientSettings(first_delay=1, max_delay=1, retry_timeout=retry_timeout)
    assert await waited(Backoff(settings), clock) == [1] * tries


@pytest.mark.parametrize(("spread", "first"), [(0, 0.5), (0.5, 0.75), (1, 1)])
async def test_waits_have_jitter(clock: ClientClock, spread: float, first: float) -> None:
    clock.spread = spread
    backoff = Backoff(ClientSettings(first_delay=1, max_delay=2))
    for _ in range(3):
        assert await backoff.wait()
    assert clock.slept == [first, 2 * first, 2 * first], "the longest wait is spread as well"


async def test_retry_after_is_the_least_wait(clock: ClientClock) -> None:
    backoff = Backoff(ClientSettings(first_delay=1, retry_timeout=20))
    assert await backoff.wait(9)
    assert await backoff.wait(0.5)
    assert not await backoff.wait(9)
    assert clock.slept == [9, 2]


# Lines


async def each(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([b"one\ntw", b"", b"o\n\nfo", b"ur\n"], ["one\n", "two\n", "\n", "four\n"]),
        ([b"one\ntwo"], ["one\n", "two"]),
        ([b"\xe2\x82", b"\xac\xe2\x80\xa8\r\n\xc3", b"\xa4"], ["\u20ac\u2028\r\n", "\u00e4"]),
    ],
)
async def test_lines_are_read_from_any_chunking(pieces: list[bytes], lines: list[str]) -> None:
    assert [line async for line in decode_lines(each(*pieces))] == lines


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["one\n", "two", ""], [b"one\n", b"two\n", b"\n"]),
        (("\u00e4\n\n",), [b"\xc3\xa4\n\n"]),
        ("one\ntwo", [b"one\n", b"two\n"]),
        (each("one", "two\n"), [b"one\n", b"two\n"]),
        ([], []),
    ],
)
async def test_lines_are_sent_with_one_line_feed(lines: Any, body: list[bytes]) -> None:
    assert [line async for line in encode_lines(lines)] == body


# Which error is made of an answer


WHERE = "http://a/chats"
PROBLEM = "application/problem+json"


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        (problem("not-authenticated"), NotAuthenticated, {}),
        (problem("not-allowed", role="a", needed="b"), NotAllowed, {"role": "a", "needed": "b"}),
        (problem("rate-limited", limit="3", retry_after=2), RateLimited, {"limit": "3", "retry_after": 2}),
        (problem("body-too-large", limit=1000), BodyTooLarge, {"limit": 1000}),
        (problem("invalid-request", problems=[{"field": "a"}]), InvalidRequest, {"problems": ({"field": "a"},)}),
        (problem("of-the-future", status=418, limit=1), ServiceFailed, {"status": 418, "detail": "as it was said"}),
        (problem("of-the-future", status="?"), ServiceFailed, {"status": 500, "detail": "as it was said"}),
    ],
)
def test_service_error_is_the_clients_own(
    given: dict[str, Any], kind: type[TurnwiseError], facts: dict[str, Any]
) -> None:
    error = parse_problem(WHERE, given)
    assert (type(error), vars(error)) == (kind, facts)
    assert (str(error) == "as it was said") is (kind is not ServiceFailed)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "a problem 'None' without a detail"),
        (problem("queue-full", detail=7), "a problem 'queue-full' without a detail"),
        (problem("queue-full"), "a problem 'queue-full' without the fields of one"),
        (problem("file-not-found", digest=7, chat_id=1), "a problem 'file-not-found' without the fields of one"),
        (problem("rate-limited", limit=1, retry_after="x"), "a problem 'rate-limited' without the fields of one"),
        (problem("chat-deleted", chat_id="c1", deleted_at="x"), "a problem 'chat-deleted' without the fields of one"),
        (problem("tool-failed"), "a problem 'tool-failed' without the fields of one"),
    ],
)
def test_malformed_problem_is_a_bad_answer(given: dict[str, Any], wrong: str) -> None:
    error = parse_problem(WHERE, given)
    assert (type(error), vars(error)) == (BadAnswer, {"url": WHERE, "problem": wrong})


@pytest.mark.parametrize(
    ("status", "media_type", "body", "kind", "facts"),
    [
        (404, "text/plain", b"not here", BadAnswer, {"url": WHERE, "problem": "status 404, 'not here'"}),
        (500, "text/plain", b"x" * 101, ServiceFailed, {"status": 500, "detail": repr("x" * 100)}),
        (502, "text/html", b"\xff", ServiceFailed, {"status": 502, "detail": "'\ufffd'"}),
        (500, PROBLEM, b'{"detail": "see"}', ServiceFailed, {"status": 500, "detail": "see"}),
        (404, PROBLEM, b'{"detail": "see"}', BadAnswer, {"url": WHERE, "problem": "status 404, see"}),
        (404, PROBLEM, b'{"\xff": 1}', BadAnswer, {"url": WHERE, "problem": "status 404, '{\"\ufffd\": 1}'"}),
    ],
)
def test_foreign_answer_is_quoted(
    status: int, media_type: str, body: bytes, kind: type[TurnwiseError], facts: dict[str, Any]
) -> None:
    error = parse_error(WHERE, status, media_type, body)
    assert (type(error), vars(error)) == (kind, facts)


# A body that is broken off


BROKEN = "0123abcd"
REASON = b'{"type":"x"}'


def cut(whole: bytes, size: int) -> list[bytes]:
    return [whole[first : first + size] for first in range(0, len(whole), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 39])
@pytest.mark.parametrize("content", [b"", b"so much", b"0123abc", b"0123abc0123abc", b"0" * 20])
def test_content_and_problem_are_separated(content: bytes, size: int) -> None:
    body = InterruptibleBody(BROKEN)
    came = b"".join(map(body.content, cut(content + BROKEN.encode() + REASON, size)))
    assert came == content
    assert body.problem == {"type": "x"}


@pytest.mark.parametrize("size", [1, 7, 19])
@pytest.mark.parametrize("mark", [BROKEN, ""])
def test_body_without_problem_is_all_content(mark: str, size: int) -> None:
    content = b"so much, and 0123abc"
    body = InterruptibleBody(mark)
    assert b"".join(map(body.content, cut(content, size))) + body.rest == content
    assert body.problem is None
