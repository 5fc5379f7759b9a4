"""What somebody hostile sends: it is refused with a problem, costs little, tells nothing, and the service lives on."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import anyio
import httpx
import pytest
import structlog

from support.served import Served, served
from turnwise import Engine, Settings
from turnwise.engine.erase import Erasure
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.service import ServiceSettings

AS_ADA: Final = b"Authorization: Bearer ada-token\r\n"
TEXT: Final = b"Content-Type: text/plain\r\n"
SHORT: Final = ServiceSettings(
    requests_per_second=10_000,
    burst=10_000,
    not_found_seconds=0,
    upload_patience=0.5,
    reader_patience=0.5,
    body_limit_bytes=100_000,
    upload_limit_bytes=300_000,
)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Let all tests of the module share a service."""
    return "asyncio"


@pytest.fixture(scope="module")
async def tight(anyio_backend: str) -> AsyncIterator[Served]:
    """Serve with little patience."""
    async with served(Engine("sqlite://", model="demo"), settings=SHORT) as service:
        yield service


@asynccontextmanager
async def connection(service: Served) -> AsyncIterator[anyio.abc.SocketStream]:
    host, _, port = service.url.removeprefix("http://").rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        yield stream


async def said(service: Served, sent: bytes) -> bytes:
    """Return all that is answered to raw bytes, until the connection is closed or silent."""
    heard = b""
    async with connection(service) as stream:
        await stream.send(sent)
        with anyio.move_on_after(30):
            try:
                while True:
                    heard += await stream.receive()
                    head, _, body = heard.partition(b"\r\n\r\n")
                    if f"content-length: {len(body)}".encode() in head.lower():
                        break
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    return heard


def status_of(heard: bytes) -> int:
    return int(heard.split(b" ", 2)[1])


def posted(path: str, body: bytes, *headers: bytes) -> bytes:
    lines = (b"Host: x\r\n", AS_ADA, *(header + b"\r\n" for header in headers))
    return b"POST " + path.encode() + b" HTTP/1.1\r\n" + b"".join(lines) + b"\r\n" + body


async def alive(service: Served) -> bool:
    async with service.client() as ada:
        return (await ada.post("/chats", json={})).status_code == 201


async def created(client: httpx.AsyncClient, **fields: Any) -> str:
    return str((await client.post("/chats", json=fields)).json()["id"])


BAD_BODIES: Final = {
    "not UTF-8": b'{"title": "\xff\xfe"}',
    "half a character": b'{"title": "\xf0\x9f"}',
    "a lone surrogate": b'{"title": "\\ud800"}',
    "a zero byte": b'{"title": "a\\u0000b", "owner": "x\\u0000"}',
    "nothing": b"",
    "no JSON": b"title=x",
    "JSON without an end": b'{"title": "x"',
    "no object": b"[]",
    "NaN": b'{"metadata": {"a": NaN}}',
    "infinity": b'{"metadata": {"a": 1e999}}',
    "a huge number": b'{"metadata": {"a": 1' + b"0" * 5000 + b"}}",
    "very deep": b'{"metadata": ' + b'{"a":' * 30_000 + b"1" + b"}" * 30_000 + b"}",
    "very deep lists": b'{"metadata": {"a": ' + b"[" * 40_000 + b"]" * 40_000 + b"}}",
    "a key of the prototype": b'{"__proto__": {"owner": "bob"}}',
    "another owner's name": b'{"owner": "bob"}',
    "an unknown field": b'{"state": "waiting"}',
    "a number for text": b'{"title": 7}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_body_that_makes_no_sense_is_a_problem_and_makes_no_chat(tight: Served, body: bytes) -> None:
    async with tight.client() as ada:
        before = (await ada.get("/chats")).json()["items"]
        answer = await ada.post("/chats", content=body, headers={"Content-Type": "application/json"})
        after = (await ada.get("/chats")).json()["items"]

    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "nothing was written" in answer.json()["detail"]
    assert len(answer.content) < 5000
    assert after == before


async def test_the_same_key_twice_is_no_way_past_a_check(tight: Served) -> None:
    async with tight.client() as ada, tight.client("operator") as operator:
        twice = b'{"owner": "ada", "owner": "bob"}'
        bobs = (await operator.get("/chats?owner=bob")).json()["items"]
        answer = await ada.post("/chats", content=twice, headers={"Content-Type": "application/json"})
        assert (await operator.get("/chats?owner=bob")).json()["items"] == bobs
    assert answer.status_code == 403


BAD_TARGETS: Final = {
    "not UTF-8": "/chats/%ff%fe",
    "a zero byte": "/chats/%00",
    "a path out of the folder": "/chats/..%2f..%2fetc%2fpasswd",
    "a line break": "/chats/x%0d%0aSet-Cookie:%20a=b",
    "a very long id": "/chats/" + "c" * 20_000,
    "SQL": "/chats/c1'%20OR%201=1--",
    "a query that is not UTF-8": "/chats?owner=%ff",
    "a query of a zero byte": "/chats?owner=%00&after=%00",
    "a query of SQL": "/chats?after=c1'%20OR%201=1--",
    "a state that is none": "/chats?state=daydreaming",
    "a limit beyond all": "/chats?limit=999999999999999999999",
    "a limit below": "/chats?limit=-1",
    "ten thousand parameters": "/chats?" + "a=1&" * 10_000,
    "a method in the path": "/chats HTTP/1.1\r\nX: y",
}


@pytest.mark.parametrize("target", BAD_TARGETS.values(), ids=BAD_TARGETS)
async def test_an_address_that_makes_no_sense_is_no_failure_of_the_service(tight: Served, target: str) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: x\r\n".encode() + AS_ADA + b"\r\n"
    heard = await said(tight, request)

    assert status_of(heard) in (200, 400, 404, 414, 431), heard[:300]
    assert b"set-cookie" not in heard.partition(b"\r\n\r\n")[0].lower()
    assert b"Traceback" not in heard
    assert await alive(tight)


BAD_HEADERS: Final = {
    "bytes beyond ASCII": b"Idempotency-Key: \xff\xfe\x00",
    "a key that is too long": b"Idempotency-Key: " + b"k" * 10_000,
    "an empty key": b"Idempotency-Key:",
    "a version that is none": b"If-Match: W/x",
    "a huge version": b'If-Match: "' + b"9" * 400 + b'"',
    "a line of headers that folds": b"X-A: b\r\n  Authorization: Bearer operator-token",
    "thousands of headers": b"\r\n".join(b"X-%d: y" % number for number in range(3000)),
    "a header of a megabyte": b"X-A: " + b"y" * 1_000_000,
    "two lengths": b"Content-Length: 2\r\nContent-Length: 7",
    "a length and pieces": b"Content-Length: 2\r\nTransfer-Encoding: chunked",
    "a length below": b"Content-Length: -1",
    "another transfer": b"Transfer-Encoding: gzip",
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
async def test_headers_that_make_no_sense_are_no_failure_of_the_service(tight: Served, header: bytes) -> None:
    length = () if b"Content-Length" in header or b"Transfer-Encoding" in header else (b"Content-Length: 2",)
    heard = await said(tight, posted("/chats", b"{}", header, *length))

    assert heard == b"" or status_of(heard) in (201, 400, 413, 431, 501), heard[:300]
    assert b"Traceback" not in heard
    assert await alive(tight)


@pytest.mark.parametrize("number", ["-1", "x", "1e3", "9" * 30, str(2**53), "7", "", "\u0663"])
async def test_the_number_of_an_event_that_never_was_is_refused_or_passed_over(tight: Served, number: str) -> None:
    """Nobody can be made to wait for ever, or to miss what comes."""
    async with tight.client() as ada:
        chat = await created(ada)
        header = [(b"Last-Event-ID", number.encode())]
        answer = await ada.get(f"/chats/{chat}/events?follow=false", headers=header)
        negative = await ada.get(f"/chats/{chat}/events?follow=false&after=-1")
    assert answer.status_code in (200, 400)
    assert answer.status_code == 400 or answer.text in ("", ": ping\n\n") or '"kind":"status"' in answer.text
    assert negative.status_code == 400


@pytest.mark.parametrize("path", ["/chats", "/files?chat={chat}", "/chats/import"])
async def test_a_body_that_is_said_to_be_giant_is_refused_before_it_comes(tight: Served, path: str) -> None:
    who = b"Authorization: Bearer operator-token\r\n"
    async with tight.client() as ada:
        target = path.format(chat=await created(ada)).encode()
    head = b"POST " + target + b" HTTP/1.1\r\nHost: x\r\n" + who + TEXT
    heard = await said(tight, head + b"Content-Length: 1000000000000\r\n\r\n")
    assert status_of(heard) == 413
    assert await alive(tight)


async def test_a_body_without_an_end_is_refused_where_it_is_too_long(tight: Served) -> None:
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    sent = 0
    async with connection(tight) as stream, anyio.create_task_group() as tasks:
        await stream.send(posted("/chats", b"", b"Transfer-Encoding: chunked"))

        async def send() -> None:
            nonlocal sent
            with suppress(anyio.BrokenResourceError):
                while True:
                    await stream.send(piece)
                    sent += len(piece)

        tasks.start_soon(send)
        with anyio.fail_after(60):
            heard = await stream.receive()
        tasks.cancel_scope.cancel()
    assert status_of(heard) == 413
    assert sent < 20_000_000
    assert await alive(tight)


@pytest.mark.parametrize("path", ["/chats", "/files?chat={chat}"])
async def test_a_slow_body_does_not_hold_the_service(tight: Served, path: str) -> None:
    """A short one has to be whole in time; of a file, every piece has to come in time."""
    async with tight.client() as ada:
        target = path.format(chat=await created(ada))
    began = anyio.current_time()
    heard = b""
    async with connection(tight) as stream:
        await stream.send(posted(target, b"", b"Content-Length: 1000", b"Content-Type: text/plain"))

        async def trickle() -> None:
            for _ in range(2 if "files" in target else 1000):
                await stream.send(b" ")
                await anyio.sleep(0.1)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(trickle)
                heard = await stream.receive()
                tasks.cancel_scope.cancel()
    assert status_of(heard) == 400
    assert b"did not come within 0.5 s" in heard
    assert anyio.current_time() - began < 60


async def test_a_reader_who_does_not_read_is_cut_off(tight: Served) -> None:
    """What waits for it in memory is bounded: the answer is many times as long as what is sent."""
    async with tight.client() as ada:
        chat = await created(ada, history=[{"role": "user", "content": "x" * 90_000}])
        for _ in range(3):
            await tight.engine.ask(chat, "y" * 8_000_000)
        for path in (f"/chats/{chat}/events?follow=false", f"/chats/{chat}/messages"):
            async with connection(tight) as stream:
                await stream.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n".encode() + AS_ADA + b"\r\n")
                await _cut_off()
                told = (await ada.get("/metrics")).text
                got = 0
                with anyio.fail_after(60):
                    try:
                        while True:
                            got += len(await stream.receive())
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        pass
            assert "turnwise_open_streams 0" in told
            assert got < 3 * 8_000_000, path


async def _cut_off() -> None:
    """Wait until a reader is cut off."""
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logs, anyio.fail_after(60):
        while "reader_cut_off" not in [log["event"] for log in logs]:  # noqa: ASYNC110 - it tells nobody
            await anyio.sleep(0.01)
    structlog.reset_defaults()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, gzip", "GZIP", "zstd", "x-gzip"])
@pytest.mark.parametrize("path", ["/chats", "/files?chat={chat}"])
async def test_a_body_that_is_packed_is_refused_unopened(tight: Served, encoding: str, path: str) -> None:
    bomb = gzip.compress(zlib.compress(b" " * 10_000_000))
    async with tight.client() as ada:
        target = path.format(chat=await created(ada))
        answer = await ada.post(target, content=bomb, headers={"Content-Encoding": encoding})
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"


async def test_an_encoding_of_no_body_is_no_reason_to_refuse_a_reader(tight: Served) -> None:
    async with tight.client() as ada:
        chat = await created(ada)
        answers = [
            await ada.get(f"/chats/{chat}", headers={"Content-Encoding": "gzip"}),
            await ada.post("/chats", json={}, headers={"Content-Encoding": "Identity"}),
        ]
    assert [answer.status_code for answer in answers] == [200, 201]


async def test_what_is_said_in_names_ends_no_line_of_a_header(tight: Served) -> None:
    evil = 'a"\r\nSet-Cookie: a=b\r\n\r\n<script>'
    async with tight.client() as ada:
        chat = await created(ada, title=evil, metadata={evil: evil})
        part = await ada.post(
            "/files", params={"chat": chat, "name": evil}, content=b"x", headers={"Content-Type": "text/html"}
        )
        sent = await ada.post(f"/chats/{chat}/messages", json={"content": [part.json()]})
        file = await ada.get(f"/files/{part.json()['blob']}", params={"chat": chat})
        answers = [part, sent, file, await ada.get(f"/chats/{chat}"), await ada.get(f"/chats/{chat}/export")]

    assert [answer.status_code for answer in answers] == [201, 202, 200, 200, 200]
    for answer in answers:
        assert "set-cookie" not in answer.headers
        assert "\n" not in "".join(answer.headers.values())
    assert (file.headers["content-type"], file.headers["x-content-type-options"]) == (
        "application/octet-stream", "nosniff"
    )  # fmt: skip


@pytest.mark.parametrize("method", ["PUT", "TRACE", "CONNECT", "PROPFIND", "DELETE"])
async def test_a_method_that_a_route_has_not_is_told_so(tight: Served, method: str) -> None:
    async with tight.client() as ada:
        answer = await ada.request(method, "/chats")
    assert answer.status_code in (400, 404, 405)
    assert answer.status_code != 405 or answer.headers["content-type"] == "application/problem+json"


async def test_nobody_reaches_into_anothers_chat_by_any_id(tight: Served) -> None:
    """Ids of Ada's chat, message and file, wherever Bob may say one: he is told what he is told of none."""
    async with tight.client("ada") as ada, tight.client("bob") as bob:
        hers, his = await created(ada), await created(bob)
        plain = {"Content-Type": "text/plain"}
        blob = (await ada.post("/files", params={"chat": hers}, content=b"secret of ada", headers=plain)).json()["blob"]
        await ada.post(
            f"/chats/{hers}/messages", json={"content": [{"type": "file", "media_type": "text/plain", "blob": blob}]}
        )
        await tight.engine.wait(hers)
        message = (await ada.get(f"/chats/{hers}/messages")).json()[0]["id"]
        before = (await ada.get(f"/chats/{hers}")).json(), (await ada.get(f"/chats/{hers}/audit")).json()

        def asked(chat: str, message: str, blob: str) -> list[tuple[str, str, Any]]:
            file = {"type": "file", "media_type": "text/plain", "blob": blob}
            return [
                ("POST", "/chats", {"parent": chat}),
                ("GET", f"/files/{blob}?chat={his}", None),
                ("GET", f"/files/{blob}?chat={chat}", None),
                ("POST", f"/files?chat={chat}", "x"),
                ("POST", f"/chats/{his}/messages", {"content": [file]}),
                ("PATCH", f"/chats/{his}/messages/{message}x", {"content": "x"}),
                ("DELETE", f"/chats/{his}/queue/{message}", None),
                ("POST", f"/chats/{his}/queue/{message}/promote", None),
                ("GET", f"/chats?after={chat}", None),
                ("GET", f"/chats/{chat}/helpers", None),
                ("GET", f"/ai-sdk/chat/{chat}/stream?finished=true", None),
                ("GET", f"/ai-sdk/chat/{chat}/messages", None),
            ]

        none = f"c{'0' * 25}", "m99", "0" * 64
        for known, unknown in zip(asked(hers, message, blob), asked(*none), strict=True):
            (method, path, body), (_, other_path, other_body) = known, unknown
            found = await bob.request(method, path, json=body)
            nothing = await bob.request(method, other_path, json=other_body)
            told, not_told = found.text, nothing.text
            for one, other in zip((hers, message, blob), none, strict=True):
                told, not_told = told.replace(one, "..."), not_told.replace(other, "...")
            assert (found.status_code, told) == (nothing.status_code, not_told), path
            assert "secret" not in told
        after = (await ada.get(f"/chats/{hers}")).json(), (await ada.get(f"/chats/{hers}/audit")).json()
    assert after == before


async def test_whoever_erases_or_deletes_a_chat_is_told_of_none_that_is_anothers(
    tight: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application may begin a chat of Bob's with one of Ada's as its parent, or let him have a copy."""
    erase = Engine.erase

    async def copied(engine: Engine, chat: str, **wanted: Any) -> Erasure:
        return replace(await erase(engine, chat, **wanted), forks=(hers, "gone", his))

    monkeypatch.setattr(Engine, "erase", copied)
    async with tight.client("ada") as ada, tight.client("operator") as operator:
        for who in (ada, operator):
            chat = await created(ada)
            hers, his = [(await tight.engine.create_chat(owner=one, parent=chat)).id for one in ("ada", "bob")]
            seen = [hers] if who is ada else [hers, "gone", his]
            erased = await who.post(f"/chats/{chat}/erase", json={"what": ["title"]})
            assert (erased.status_code, erased.json()["forks"]) == (200, seen)
            children = (await who.delete(f"/chats/{chat}")).json()["children"]
            assert set(children) == set(seen) - {"gone"}


async def test_no_answer_tells_a_secret_of_the_model_or_of_the_code() -> None:
    def fails(_: Any) -> Reply:
        raise RuntimeError("401 from https://user:hunter2@models.example: api_key=sk-hunter2 is wrong")

    settings = Settings(describe_error=lambda error: type(error).__name__)
    engine = Engine("sqlite://", model=ScriptedModel(fails), settings=settings)
    async with served(engine) as service, service.client() as ada:
        chat = await created(ada)
        await ada.post(f"/chats/{chat}/messages", json={"content": "hi"})
        await service.engine.wait(chat)
        paths = ("", "/messages", "/events?follow=false", "/audit", "/explain", "/usage", "/transcript", "/export")
        told = [(await ada.get(f"/chats/{chat}{path}")).text for path in paths]
        metrics = (await ada.get("/metrics")).text
    assert json.loads(told[0])["last_error"]["message"] == "step 1: RuntimeError"
    for text in (*told, metrics):
        assert "hunter2" not in text
        assert "Traceback" not in text
        assert "RuntimeError(" not in text
