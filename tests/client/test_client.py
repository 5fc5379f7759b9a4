"""What the client itself decides: where a chat has arrived, which pages are asked for, what is no address."""

from __future__ import annotations

import hashlib
import re
from contextlib import nullcontext
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from support.wire.server import Answer, End, Server
from turnwise import ChatNotFound, ChatState, FileNotFound, InvalidArgument, TurnwiseError
from turnwise.client import Client, ClientSettings, NotAllowed, NotAuthenticated, ServiceUnreachable
from turnwise.client.client import _of, sound_url
from turnwise.client.events import has_arrived
from turnwise.engine.results import Chat
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
        (chat("requires_action", awaits="helpers"), RESTING, False),
        (chat("requires_action", awaits="helpers"), {ChatState.requires_action}, True),
    ],
)
def test_has_arrived_only_where_a_chat_stays(found: Chat, states: Any, arrived: bool) -> None:
    assert has_arrived(frozenset(states), found) is arrived


async def test_wait_checks_the_chat_after_its_events(server: Server) -> None:
    """However often its state changes before; and what a waiter asks so by itself may be too much, which passes."""
    works = CHAT | {"state": "streaming"}
    changes = [status(8), status(9, "executing_tools"), status(10), status(11, "requires_action")]
    first, second = Answer(changes, end="silence"), Answer([status(13, "waiting")], end="silence")
    helped = works | {"state": "requires_action", "awaits": "helpers", "last_seq": 12}
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
        (1001, [page(following="c9"), page(following=None)], ["limit=1000", "limit=1000&after=c9"], 0, None),
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
    """The service was killed, and a proxy has made a clean end of that."""
    server.script = [Answer([whole])]
    async with opened(server) as client:
        with pytest.raises(ServiceUnreachable, match="the export ends early") as cut:
            [line async for line in client.export_chat("c1")]
    assert cut.value.sent is False


@pytest.mark.parametrize("segment", ["", "..", "a/b"])
def test_id_cannot_change_the_path(segment: str) -> None:
    with pytest.raises(ChatNotFound):
        _of(segment)
    with pytest.raises(InvalidArgument) as refused:
        _of("c1", "messages", segment)
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
    """It would be sent in place of the token."""
    with pytest.raises(InvalidArgument, match="must hold no user and no password, as the token says who") as refused:
        sound_url(url)
    assert ("ann" in str(refused.value), "ter2" in str(refused.value)) == (True, False)


@pytest.mark.parametrize("last", [("not-authenticated", 401, {}), ("not-allowed", 403, {"role": "a", "needed": "b"})])
async def test_accepted_message_is_never_called_unwritten(
    server: Server, last: tuple[str, int, dict[str, str]]
) -> None:
    """The token may expire before the answer is there: whoever asks again with another would ask twice."""
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
