"""Decisions of the client itself: waits, pages, and invalid addresses."""

import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from typing import Any

import anyio
import httpx
import pytest
from msgspec import convert
from msgspec.structs import replace
from tests.client.client_clock import ClientClock

from support.wire.server import Answer, End, Server, problem
from turnwise import ChatNotFound, ChatState, FileNotFound, InvalidArgument, TurnwiseError
from turnwise.client import BadAnswer, Client, ClientSettings, NotAllowed, NotAuthenticated, RateLimited
from turnwise.client.client import sound_url
from turnwise.client.errors import ServiceUnreachable
from turnwise.client.events import _server_sent_events, has_arrived
from turnwise.engine.config.results import Chat
from turnwise.states.errors import EngineClosed
from turnwise.states.names import RESTING

CHAT: dict[str, Any] = {
    "id": "c1", "agent": "default", "state": "waiting", "version": 1, "history_version": 1, "last_seq": 7, "turn": 0,
    "step": 0, "attempt": 0, "owner": None, "title": None, "metadata": {}, "archived": False, "last_error": None,
    "stop_reason": None, "usage": {}, "open_calls": [], "queued": 0, "settled": True, "parent": None,
    "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
RECEIPT = {"chat": CHAT, "message_id": "m1", "queued": False, "replayed": False, "seq": 7}
RESULT: dict[str, Any] = {
    "chat": CHAT, "text": "x", "stop_reason": "end_turn", "usage": {}, "messages": [], "output": None, "open_calls": [],
}  # fmt: skip
CHECKPOINT = '{"hash":"ab","head":"cd","rows":{"chats":1}}'
LIMITED = Answer.refusal(429, "rate-limited", limit="1", retry_after=0)


def page(*ids: str, following: str | None) -> Answer:
    return Answer.of({"items": [CHAT | {"id": one} for one in ids], "next": following})


def status(seq: int, state: str = "streaming") -> str:
    return f'event: status\ndata: {{"kind": "status", "seq": {seq}, "state": "{state}"}}\n\n'


def opened(server: Server, **settings: float) -> Client:
    return Client(server.url, token="t", settings=ClientSettings(**settings))


def asked_of(server: Server) -> list[str]:
    return [f"{asked.method} {asked.path}" for asked in server.asked]


def chat(state: str = "waiting", **fields: Any) -> Chat:
    return replace(convert(CHAT, Chat), state=ChatState(state), **fields)


@pytest.mark.parametrize(
    ("found", "states", "arrived"),
    [
        (chat(), RESTING, True),
        (chat("streaming"), RESTING, False),
        (chat("interrupted", settled=False), RESTING, False),
        (chat("interrupted", settled=False), {ChatState.interrupted}, False),
        (chat("waiting", unreadable="x"), RESTING, False),
        (chat("requires_action", awaits="client"), RESTING, True),
        (chat("requires_action", awaits="subagents"), RESTING, False),
        (chat("requires_action", awaits="subagents"), {ChatState.requires_action}, True),
    ],
)
def test_has_arrived_only_where_a_chat_stays(found: Chat, states: Any, arrived: bool) -> None:
    assert has_arrived(frozenset(states), found) is arrived


async def test_wait_checks_the_chat_after_its_events(server: Server) -> None:
    """Even after many changes of state; a refusal of the waiter's own request for its rate is passing."""
    works = CHAT | {"state": "streaming"}
    changes = [status(8), status(9, "executing_tools"), status(10), status(11, "requires_action")]
    first, second = Answer(changes, end="silence"), Answer([status(13, "waiting")], end="idle_timeout")
    helped = works | {"state": "requires_action", "awaits": "subagents", "last_seq": 12}
    server.script = [Answer.of(works), first, LIMITED, LIMITED, Answer.of(helped), second, LIMITED, Answer.of(CHAT)]
    async with opened(server, first_delay=0) as client:
        assert (await client.wait("c1")).state == "waiting"
    assert asked_of(server) == [
        "GET /chats/c1",
        "GET /chats/c1/events?after=7&follow=true&until_rest=true",
        *["GET /chats/c1"] * 3,
        "GET /chats/c1/events?after=12&follow=true&until_rest=true",
        *["GET /chats/c1"] * 2,
    ]


@pytest.mark.parametrize(
    ("limit", "pages", "asked", "found", "following"),
    [
        (5, [page("c3", "c2", following="c2"), page("c1", following=None)], ["limit=5", "limit=3&after=c2"], 3, None),
        (2, [page("c3", "c2", following="c2")], ["limit=2"], 2, "c2"),
        (3, [page("c3", "c2", following="c2"), page("c1", following="c1")], ["limit=3", "limit=1&after=c2"], 3, "c1"),
        (1001, [page(following="c9"), page(following=None)], ["limit=1001", "limit=1001&after=c9"], 0, None),
    ],
)
async def test_long_list_is_read_in_pages(
    server: Server, limit: int, pages: list[Answer], asked: list[str], found: int, following: str | None
) -> None:
    server.script = pages
    async with opened(server) as client:
        chats = await client.list_chats(limit=limit)
    assert asked_of(server) == [f"GET /chats?{query}" for query in asked]
    assert [one.id for one in chats.items] == ["c3", "c2", "c1"][:found]
    assert chats.next == following


@pytest.mark.parametrize(("patient_for", "within"), [(60, "25"), (20, "10.0")])
async def test_ask_retries_until_the_answer_is_there(server: Server, patient_for: float, within: str) -> None:
    server.script = [Answer.of(RECEIPT), LIMITED, Answer.of(None, 202), Answer([], 502), Answer.of(RESULT)]
    async with opened(server, timeout=patient_for, first_delay=0) as client:
        result = await client.ask("c1", "Hi!")
    assert (result.text, result.chat.id, result.output) == ("x", "c1", None)
    assert asked_of(server) == ["POST /chats/c1/messages", *[f"POST /chats/c1/ask?within={within}"] * 4]
    (key,) = {asked.headers["idempotency-key"] for asked in server.asked}
    assert re.fullmatch("client-[0-9a-f]{32}", key), "one key for all of it, although none was given"
    assert server.asked[3].body == {"content": [{"type": "text", "text": "Hi!", "metadata": None}]}


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("came", "end", "kind"),
    [("damaged", "end", FileNotFound), ("dama", "drop", ServiceUnreachable), ("written", "end", None)],
)
async def test_damaged_and_cut_files_differ(
    server: Server, came: str, end: End, kind: type[TurnwiseError] | None
) -> None:
    server.script = [Answer([came], end=end)]
    pieces: list[bytes] = []
    async with opened(server) as client:
        with pytest.raises(kind) if kind else nullcontext() as failure:
            async for piece in client.open_file("c1", digest_of(b"written")):
                pieces.append(piece)  # noqa: PERF401 - what came before the error
    assert b"".join(pieces) == came.encode()
    if kind is FileNotFound:
        assert "is damaged" in str(failure and failure.value)


@pytest.mark.parametrize("whole", ["", "one\n", f"one\n{CHECKPOINT[:-1]}", "[]\n"])
async def test_cut_export_is_an_error(server: Server, whole: str) -> None:
    """The service was killed, and a proxy ended the body cleanly."""
    server.script = [Answer([whole])]
    async with opened(server) as client:
        with pytest.raises(ServiceUnreachable, match="the export ends early") as cut:
            [line async for line in client.export_chat("c1")]
    assert cut.value.sent is False


@pytest.mark.parametrize("segment", ["", "..", "a/b"])
async def test_id_cannot_change_the_path(segment: str) -> None:
    client = Client("http://a", token="t")
    with pytest.raises(ChatNotFound):
        await client.resume(segment)
    with pytest.raises(InvalidArgument) as refused:
        await client.edit_message("c1", segment, "x")
    assert str(refused.value) == f"message_id: must be the id of a message; it was {segment!r}; nothing was written"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://a.example:8080/v1", "https://a.example:8080/v1"),
        ("http://[::1]:80//", "http://[::1]:80"),
        ("http://a/@ann/chats@v1", "http://a/@ann/chats@v1"),
        ("a.example", None),
        ("http://:80", None),
        ("http://a:70000", None),
        ("http://a/\u00e4", None),
        ("http://a?x=1", None),
        ("http://[a", None),
    ],
)
def test_url_must_be_of_a_service(url: str, found: str | None) -> None:
    if found is None:
        with pytest.raises(InvalidArgument, match=r"^url: must be like https://chats\.example\.com; it was "):
            sound_url(url)
    else:
        assert sound_url(url) == found


@pytest.mark.parametrize("url", ["http://ann:hunter2@a", "ftp://ann:hun@ter2@a"])
def test_url_with_password_is_refused_unshown(url: str) -> None:
    """The password would replace the token."""
    with pytest.raises(InvalidArgument, match="must hold no user and no password, as the token says who") as refused:
        sound_url(url)
    assert ("ann" in str(refused.value), "ter2" in str(refused.value)) == (True, False)


@pytest.mark.parametrize("last", [("not-authenticated", 401, {}), ("not-allowed", 403, {"role": "a", "needed": "b"})])
async def test_accepted_message_is_never_called_unwritten(
    server: Server, last: tuple[str, int, dict[str, str]]
) -> None:
    """The token may expire before the answer; a retry without the id would ask twice."""
    name, code, fields = last
    refused = Answer.refusal(code, name, **fields)
    async with opened(server) as client:
        server.script = [Answer.of(RECEIPT), refused]
        with pytest.raises(ServiceUnreachable) as asked:
            await client.ask("c1", "Book it")
        server.asked.clear()
        with pytest.raises(ServiceUnreachable) as streamed:
            _ = [event async for event in client.stream("c1", "Book it")]
        server.asked.clear()
        server.script = [refused]
        with pytest.raises((NotAuthenticated, NotAllowed)):
            await client.send_message("c1", "Book it")
    for error in (asked.value, streamed.value):
        assert error.sent
        assert "nothing was written" not in str(error)


# Events


END = ": end\n\n"
LAST = Answer([status(9), END])
ONCE = ClientSettings(retry_timeout=0)
TWICE = ClientSettings(first_delay=1, max_delay=1, retry_timeout=1.5)


async def read(server: Server, settings: ClientSettings = TWICE, **asked: Any) -> list[int]:
    async with Client(server.url, token="t", settings=settings) as client:
        with anyio.fail_after(60):
            return [event.seq async for event in client.events("c1", **{"follow": False, **asked})]


async def test_each_event_comes_once_over_reconnects(server: Server, clock: ClientClock) -> None:
    seen = [
        [status(1), status(2)],
        [status(2), status(3)],
        [status(1), status(4)],
        [status(5)],
    ]
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
    assert await read(server, ClientSettings(first_delay=1, retry_timeout=60)) == [9]
    assert clock.slept == [7, 2]
    server.script = [limited]
    with pytest.raises(RateLimited):
        await read(server, ClientSettings(retry_timeout=6))


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
    with pytest.raises(TurnwiseError) as raised:
        await read(server)
    assert type(raised.value).__name__ == kind
    assert vars(raised.value).items() >= facts.items()
    assert len(server.asked) == 1
    if isinstance(raised.value, BadAnswer):
        assert raised.value.url == f"{server.url}/chats/c1/events?after=0&follow=false&until_rest=false"


async def test_reconnect_event_is_followed(server: Server, clock: ClientClock) -> None:
    server.script = [Answer([status(1), RECONNECT, status(2)]), LAST]
    assert await read(server) == [1, 9]
    server.script = [Answer([RECONNECT])]
    with pytest.raises(EngineClosed, match="the service stops; the stream goes on after the last event, once there is"):
        await read(server, ONCE)


async def test_silent_stream_is_dead(server: Server) -> None:
    server.script = [Answer([status(1)], end="silence")]
    with pytest.raises(ServiceUnreachable) as dead:
        await read(server, ClientSettings(retry_timeout=0, idle_timeout=0.05))
    assert dead.value.problem == "ReadTimeout"


@pytest.mark.parametrize(
    ("body", "expected"),
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
async def test_sse_parser_accepts_any_chunking(body: str, expected: list[tuple[str, bytes]], size: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        data = body.encode()
        for start in range(0, len(data), size):
            yield data[start : start + size]

    assert [one async for one in _server_sent_events(httpx.Response(200, content=pieces()))] == expected


def chat_at(seq: int, state: str) -> Answer:
    return Answer.of(CHAT | {"state": state, "last_seq": seq})


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("asked", [{"follow": True, "until_rest": True}, {"follow": False}])
@pytest.mark.parametrize("found", [chat_at(9, "waiting"), chat_at(2, "streaming")])
async def test_clean_cut_in_mid_turn_is_read_on(server: Server, asked: dict[str, Any], found: Answer) -> None:
    """Without the service's end mark, the chat has continued or will."""
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
