"""What somebody hostile sends: it is refused with a problem, costs little, tells nothing, and the service lives on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import anyio
import httpx
import pytest

from support.served import Served, served
from turnwise import Engine, Settings
from turnwise.engine.erase import Erasure
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.service import ServiceSettings

AS_ADA: Final = b"Authorization: Bearer ada-token\r\n"
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


async def send(service: Served, sent: bytes) -> bytes:
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


@pytest.mark.deep
@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
async def test_malformed_headers_do_not_stop_the_service(tight: Served, header: bytes) -> None:
    length = () if b"Content-Length" in header or b"Transfer-Encoding" in header else (b"Content-Length: 2",)
    heard = await send(tight, posted("/chats", b"{}", header, *length))

    assert heard == b"" or status_of(heard) in (201, 400, 413, 431, 501), heard[:300]
    assert b"Traceback" not in heard
    assert await alive(tight)


async def test_content_encoding_without_body_is_accepted(tight: Served) -> None:
    async with tight.client() as ada:
        chat = await created(ada)
        answers = [
            await ada.get(f"/chats/{chat}", headers={"Content-Encoding": "gzip"}),
            await ada.post("/chats", json={}, headers={"Content-Encoding": "Identity"}),
        ]
    assert [answer.status_code for answer in answers] == [200, 201]


async def test_names_inject_no_headers(tight: Served) -> None:
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


async def test_foreign_ids_look_unknown(tight: Served) -> None:
    """Ids of Ada's chat, message and file, wherever Bob may say one: the answer is that for unknown ids."""
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
            found_text, other_text = found.text, nothing.text
            for one, other in zip((hers, message, blob), none, strict=True):
                found_text, other_text = found_text.replace(one, "..."), other_text.replace(other, "...")
            assert (found.status_code, found_text) == (nothing.status_code, other_text), path
            assert "secret" not in found_text
        after = (await ada.get(f"/chats/{hers}")).json(), (await ada.get(f"/chats/{hers}/audit")).json()
    assert after == before


async def test_erase_and_delete_name_no_foreign_chats(tight: Served, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_answers_leak_no_secrets() -> None:
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
