"""What goes over the wire for a request, which requests are sent again, and what is made of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, Any

import anyio
import httpx
import pytest
from pydantic import AfterValidator

from support.client_clock import ClientClock
from support.wire.server import Answer, End, Server, problem
from turnwise import QueueFull, StoreError, TurnwiseError
from turnwise.client import BadAnswer, ClientSettings, RateLimited, ServiceFailed, ServiceUnreachable
from turnwise.client import connection as connection_module
from turnwise.client.connection import Connection, Request, _may_have_been_done, _may_pass, is_passing, pieces_of
from turnwise.states.errors import ChatExists, ChatUnreadable, EngineClosed, EngineInUse, SettingsError
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


async def test_a_request_is_sent_with_all_that_is_given_of_it(server: Server, connection: Connection) -> None:
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
    ("silence", "read"),
    [(None, 60), (45, 45), (0, 0)],
)
async def test_a_request_waits_as_long_as_the_settings_say(
    connection: Connection, silence: float | None, read: float
) -> None:
    assert connection._client is not None
    built = connection._built(connection._client, GET, silence)
    assert built.extensions["timeout"] == {"connect": 60, "read": read, "write": 60, "pool": 60}


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ServiceFailed(500, "x"), False),
        (ServiceFailed(501, "x"), False),
        (ServiceFailed(502, "x"), True),
        (ServiceFailed(503, "x"), True),
        (ServiceFailed(504, "x"), True),
        (ServiceFailed(505, "x"), False),
        (ServiceUnreachable(URL, "x", sent=True), True),
        (ServiceUnreachable(URL, "x", sent=False), True),
        (EngineClosed("x"), True),
        (RateLimited("x", 1), True),
        (StoreError("x"), True),
        (ChatExists("c1"), False),
        (ChatUnreadable("a.b", "x"), False),
        (QueueFull(3), False),
        (BadAnswer(URL, "x"), False),
    ],
)
def test_a_service_may_be_there_again_unless_it_has_said_what_is_wrong(error: TurnwiseError, passes: bool) -> None:  # noqa: FBT001
    assert is_passing(error) is passes


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
def test_a_request_is_sent_again_only_where_that_is_safe(
    error: TurnwiseError,
    once: bool,  # noqa: FBT001
    safe: bool,  # noqa: FBT001
    streamed: bool,  # noqa: FBT001
) -> None:
    requests = POST, GET, Request(method="POST", path="/files", stream=body())
    assert [_may_pass(error, request, sent=False) for request in requests] == [once, safe, streamed]


@pytest.mark.parametrize(
    ("error", "done"),
    [
        (httpx.ConnectError("x"), False),
        (httpx.ConnectTimeout("x"), False),
        (httpx.PoolTimeout("x"), False),
        (httpx.UnsupportedProtocol("x"), False),
        (httpx.ReadError("x"), True),
        (httpx.ReadTimeout("x"), True),
        (httpx.WriteError("x"), True),
        (httpx.RemoteProtocolError("x"), True),
    ],
)
def test_what_was_sent_may_have_been_done_unless_it_only_asked(error: httpx.HTTPError, done: bool) -> None:  # noqa: FBT001
    assert (_may_have_been_done(error, POST), _may_have_been_done(error, GET)) == (done, False)


async def test_a_repeatable_request_is_sent_until_it_is_answered(server: Server, connection: Connection) -> None:
    server.script = [CLOSED, Answer(["{"], end="drop"), Answer(["{"], 503, end="drop"), Answer.of({"a": "b"})]
    assert await connection.ask(GET, dict[str, str]) == {"a": "b"}
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("answer", "kind", "sent"),
    [
        (CLOSED, EngineClosed, None),
        (LIMITED, RateLimited, None),
        (AWAY, StoreError, None),
        (DOUBTED, ServiceUnreachable, True),
        (Answer(["{"], end="drop"), ServiceUnreachable, True),
        (Answer(["{"], 500, end="drop"), ServiceUnreachable, True),
    ],
)
async def test_other_requests_are_sent_once(
    server: Server,
    connection: Connection,
    answer: Answer,
    kind: type[TurnwiseError],
    sent: bool | None,  # noqa: FBT001
) -> None:
    server.script = [answer, Answer.of({})]
    with pytest.raises(kind) as refused:
        await connection.ask(POST, dict[str, str])
    assert (len(server.asked), getattr(refused.value, "sent", None)) == (1, sent)


def _said_to_be_sent(error: TurnwiseError) -> bool:
    return isinstance(error, ServiceUnreachable) and error.sent and "nothing was written" not in str(error)


async def test_a_question_writes_nothing_whatever_its_store_says(server: Server) -> None:
    server.script = [DOUBTED]
    connection = Connection(server.url, "word", AT_ONCE)
    await connection.open()
    with pytest.raises(StoreError):
        await connection.ask(GET, dict[str, str])
    await connection.close()


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("last", "tries"),
    [
        *((last, 6) for last in (CLOSED, LIMITED, AWAY, DOUBTED, Answer(["{"], end="drop"))),
        (Answer(["{"], 503, end="drop"), 6),
        (EXPIRED, 2),
        (FORBIDDEN, 2),
    ],
)
async def test_what_may_have_been_done_is_never_called_unwritten(server: Server, last: Answer, tries: int) -> None:
    """Whatever is said of a later try: that nothing was written is true of that one alone."""
    server.script = [Answer(["{"], end="drop"), last]
    connection = Connection(server.url, "word", ClientSettings())
    await connection.open()
    with pytest.raises(ServiceUnreachable) as unanswered:
        await connection.ask(KEYED, dict[str, str])
    await connection.close()
    assert _said_to_be_sent(unanswered.value)
    assert len(server.asked) >= tries


@pytest.mark.usefixtures("clock")
async def test_what_may_have_been_done_is_not_called_unwritten_when_nobody_is_there_any_more() -> None:
    async def take_one_and_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        listener.close()
        writer.close()

    listener = await asyncio.start_server(take_one_and_go, "127.0.0.1", 0)
    connection = Connection(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "word", ClientSettings())
    await connection.open()
    with pytest.raises(ServiceUnreachable) as unanswered:
        await connection.ask(KEYED, dict[str, str])
    await connection.close()
    assert isinstance(unanswered.value.__cause__, ServiceUnreachable)
    assert not unanswered.value.__cause__.sent
    assert _said_to_be_sent(unanswered.value)


async def test_what_may_have_been_done_is_waited_for_past_a_limit_of_requests(server: Server) -> None:
    server.script = [Answer(["{"], end="drop"), LIMITED, Answer.of({"a": "b"})]
    connection = Connection(server.url, "word", ClientSettings(first_delay=0.01))
    await connection.open()
    assert await connection.ask(KEYED, dict[str, str]) == {"a": "b"}
    await connection.close()


async def test_a_limit_of_requests_is_no_reason_to_send_more(server: Server, connection: Connection) -> None:
    server.script = [LIMITED]
    with pytest.raises(RateLimited):
        await connection.ask(GET, dict[str, str])
    assert len(server.asked) == 1


async def test_without_patience_a_request_is_sent_once(server: Server) -> None:
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


async def test_a_connection_that_is_closed_is_patient_no_longer(server: Server) -> None:
    server.script = [CLOSED]
    connection = Connection(server.url, "word", ClientSettings(first_delay=0.01, max_delay=0.01, patience=1_000_000))
    await connection.open()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def close() -> None:
                await server.request(2)
                await connection.close()

            tasks.start_soon(close)
            with pytest.raises(TurnwiseError):
                await connection.ask(GET, dict[str, str])
    assert not connection.is_open
    await connection.close()


@pytest.mark.parametrize("status", [200, 201, 299])
async def test_an_answer_of_success_is_read(server: Server, connection: Connection, status: int) -> None:
    server.script = [Answer.of({"a": "b"}, status)]
    assert await connection.ask(POST, dict[str, str]) == {"a": "b"}


@pytest.mark.parametrize("status", [300, 307, 400, 404])
async def test_any_other_is_none(server: Server, connection: Connection, status: int) -> None:
    server.script = [Answer.of({"a": "b"}, status)]
    with pytest.raises(BadAnswer) as refused:
        await connection.ask(POST, dict[str, str])
    assert vars(refused.value) == {
        "url": f"{server.url}/v1/x", "problem": f"""status {status}, '{{"a": "b"}}'"""
    }  # fmt: skip


def _refuse(value: str) -> str:
    raise TypeError(value)


@pytest.mark.parametrize(
    ("content", "answer", "problem"),
    [
        (b'{"a": {"b": 7}}', dict[str, dict[str, str]], "a.b: Input should be a valid string"),
        (b"7", str, "Input should be a valid string"),
        (
            b'{"a": "x"}',
            dict[str, Annotated[str, AfterValidator(_refuse)]],
            "what it says cannot be read (TypeError)",
        ),
    ],
)
def test_an_answer_that_is_nothing_of_the_kind_is_named(content: bytes, answer: Any, problem: str) -> None:
    response = httpx.Response(200, content=content, request=httpx.Request("GET", "http://a/x"))
    with pytest.raises(BadAnswer) as refused:
        Connection(URL, "word", AT_ONCE).read(response, answer)
    assert vars(refused.value) == {"url": "http://a/x", "problem": problem}


@pytest.mark.parametrize(
    ("error", "problem"), [(httpx.ReadError("cut"), "cut"), (httpx.ReadTimeout(""), "ReadTimeout")]
)
async def test_a_fault_without_words_is_named_by_its_kind(
    connection: Connection, error: httpx.HTTPError, problem: str
) -> None:
    fault = connection.fault(error, sent=True)
    assert vars(fault) == {"url": connection.url, "problem": problem, "sent": True}


async def test_what_a_client_cuts_off_as_it_is_closed_is_no_fault_of_the_service(server: Server) -> None:
    """Whether a change was made is not known all the same."""
    server.script = [Answer(["{"], end="silence")]
    connection, raised = Connection(server.url, "word", ClientSettings()), {}
    await connection.open()

    async def ask(request: Request) -> None:
        with pytest.raises(TurnwiseError) as cut:
            await connection.ask(request, dict[str, str])
        raised[request.method] = cut.value

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, GET)
            tasks.start_soon(ask, POST)
            for number in (1, 2):
                await (await server.request(number)).answered.wait()
            await connection.close()
    assert (type(raised["GET"]), str(raised["GET"])) == (
        EngineClosed,
        "the client was closed; what was accepted is kept",
    )
    assert vars(raised["POST"]) == {"url": server.url, "problem": "the client was closed", "sent": True}


async def test_what_may_have_been_done_is_not_called_unwritten_by_a_client_that_is_closed_before_it_asks_again(
    server: Server, clock: ClientClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = [Answer(["{"], end="drop")]
    connection = Connection(server.url, "word", ClientSettings())
    await connection.open()

    async def sleep(_seconds: float) -> None:
        await connection.close()

    monkeypatch.setattr(clock, "sleep", sleep)
    with pytest.raises(ServiceUnreachable) as unanswered:
        await connection.ask(KEYED, dict[str, str])
    assert _said_to_be_sent(unanswered.value)
    assert len(server.asked) == 1


def test_what_may_have_been_done_is_said_to_be_so_once() -> None:
    doubted = StoreError("the disk is away; it is not known whether anything was written", written="unknown")
    error = Connection(URL, "word", AT_ONCE).unanswered(doubted)
    assert vars(error) == {"url": URL, "problem": "it says 'the disk is away'", "sent": True}


async def test_a_body_that_is_cut_is_an_error_and_what_came_is_given(server: Server, connection: Connection) -> None:
    server.script = [Answer(["one"], end="drop")]
    async with aclosing(pieces_of(connection, POST)) as pieces:  # type: ignore[type-var]
        assert await anext(pieces) == b"one"
        with pytest.raises(ServiceUnreachable) as cut:
            await anext(pieces)
    assert cut.value.sent is False


@pytest.mark.parametrize("end", ["end", "drop"])
async def test_what_a_service_broke_off_is_told_however_its_body_ends(
    server: Server, connection: Connection, end: End
) -> None:
    """A proxy may make a clean end of a body that was cut off."""
    damaged = problem("chat-unreadable", column="messages.body", problem="gone")
    server.script = [Answer(["one", MARK + json.dumps(damaged)], headers={"X-Problem-After": MARK}, end=end)]
    async with aclosing(pieces_of(connection, GET)) as pieces:  # type: ignore[type-var]
        assert await anext(pieces) == b"one"
        with pytest.raises(ChatUnreadable, match="as it was said"):
            await anext(pieces)


async def test_whoever_reads_no_further_lets_go_of_the_connection(server: Server, connection: Connection) -> None:
    server.script = [Answer(["one"], end="silence")]
    async with connection.opened(GET) as response:
        pieces = response.aiter_bytes()
        assert await anext(pieces) == b"one"
    with anyio.fail_after(60):
        await server.asked[0].gone.wait()
    assert connection.is_open
    del pieces  # which, had it been dropped before, would have let go by itself


async def test_any_number_of_streams_are_open_at_once(server: Server, connection: Connection) -> None:
    server.script = [Answer(["one"], end="silence")]
    with anyio.fail_after(60):
        async with AsyncExitStack() as stack:
            for _ in range(101):
                await stack.enter_async_context(connection.opened(GET))
            assert len(server.asked) == 101


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("ALL_PROXY", "socks5://proxy", "PROXY"),
        ("HTTP_PROXY", "bogus://jane:hunter2@proxy", "PROXY"),
        ("HTTPS_PROXY", "http://proxy:x", "PROXY"),
        ("SSL_CERT_FILE", "/nonexistent", "SSL_CERT_FILE"),
    ],
)
async def test_an_environment_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, named: str
) -> None:
    connection_module._trusted.cache_clear()
    monkeypatch.setenv(name, value)
    connection = Connection(URL, "word", AT_ONCE)
    with pytest.raises(SettingsError, match=named) as refused:
        await connection.open()
    assert not connection.is_open
    assert "hunter2" not in str(refused.value)
