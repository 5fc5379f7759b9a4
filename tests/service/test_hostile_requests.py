"""What strangers and owners send on purpose: raw bytes on a real socket. Nothing breaks, and nothing leaks."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import anyio
import httpx
import pytest

from support.served import Served, served
from turnwise import Engine
from turnwise.service import ServiceSettings
from turnwise.service.routes.table import ROUTES

LINES: Final = "Host: x\r\nAuthorization: Bearer ada-token\r\nConnection: close\r\n"
DEEP: Final = b"[" * 100_000 + b"]" * 100_000
METADATA: Final = b'{"metadata":{"a":%s}}'
AGUI: Final = b'{"threadId":"t","runId":"%s","state":{},"messages":[%s],"tools":[],"context":[],"forwardedProps":{}}'
AI_SDK: Final = b'{"id":"t","messages":[{"id":"u","role":"%s","parts":[%s]}]}'


async def send(url: str, *pieces: bytes, within: float = 60) -> tuple[int, bytes]:
    """Send raw bytes and return the status and the whole answer, until the service closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        with anyio.fail_after(within):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.read(1_000_000)
    finally:
        writer.close()
    return int(head.split()[1]), head + body


def post(path: str, body: bytes, *lines: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", LINES + "Content-Type: application/json", *lines, f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def get(target: str, *lines: str) -> bytes:
    return (f"GET {target} HTTP/1.1\r\n{LINES}" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode("latin-1")


REFUSED: Final = {
    "a body that is no UTF-8": (400, post("/chats", b'{"title":"\xff\xfe"}')),
    "half a character": (400, post("/chats", b'{"title":"\\ud800"}')),
    "half a character in a key": (400, post("/chats", METADATA % b'{"\\udfff":1}')),
    "half a character in an unknown field": (400, post("/chats", b'{"\\ud800":1}')),
    "half a character in a run": (400, post("/agui", AGUI % (b"\\ud800", b'{"id":"1","role":"user","content":"x"}'))),
    "half a character in a history": (
        400,
        post("/agui", AGUI % (b"r", b'{"id":"1","role":"assistant","content":"\\ud800"}')),
    ),
    "nothing": (400, post("/chats", b"")),
    "no object": (400, post("/chats", b"[]")),
    "no end": (400, post("/chats", b'{"title":"x"')),
    "an unknown field": (400, post("/chats", b'{"state":"waiting"}')),
    "another owner": (403, post("/chats", b'{"owner":"bob"}')),
    "another owner, in a duplicate key": (403, post("/chats", b'{"owner":"ada","owner":"bob"}')),
    "NUL": (400, post("/chats", b'{"title":"\\u0000"}')),
    "NUL in a path": (400, get("/chats/%00")),
    "NaN": (400, post("/chats", METADATA % b"NaN")),
    "infinity": (400, post("/chats", METADATA % b"1e999")),
    "a huge integer": (400, post("/chats", METADATA % (b"9" * 1000))),
    "an integer that is too long to read": (400, post("/chats", METADATA % (b"9" * 5000))),
    "a deep list": (400, post("/chats", METADATA % DEEP)),
    "a list that is less deep": (400, post("/chats", METADATA % (b"[" * 500 + b"]" * 500))),
    "a file whose address is no text": (400, post("/ai-sdk/chat", AI_SDK % (b"user", b'{"type":"file","url":5}'))),
    "a path that is no UTF-8": (404, get("/chats/%ff%fe")),
    "a path of raw bytes": (400, get("/chats/\xff\xfe")),
    "a line break in an id": (404, get("/chats/a%0d%0aX:%20y/export")),
    "a path out of the folder": (404, get("/chats/..%2f..%2fetc%2fpasswd")),
    "a limit beyond all": (400, get("/chats?limit=999999999999999999999")),
    "a query that is no UTF-8": (400, get("/chats?after=%ff%00")),
    "a token that is no UTF-8": (401, get("/chats").replace(b"ada-token", b"\xff\xfe")),
    "a method that is not allowed": (405, get("/chats").replace(b"GET", b"TRACE")),
    "a flood of headers": (400, get("/chats", *(f"X-{number}: y" for number in range(20_000)))),
    "a header that goes on": (400, get("/chats", "If-Match: 1\r\n\x00: y")),
    "gzip": (415, post("/chats", b"\x1f\x8b" + b"x" * 50, "Content-Encoding: gzip")),
    "deflate": (415, post("/chats", b"x\x9c", "Content-Encoding: deflate")),
    "br": (415, post("/chats", b"\x0b", "Content-Encoding: br")),
    "gzip behind another coding": (415, post("/chats", b"{}", "Content-Encoding: identity", "Content-Encoding: gzip")),
    "a million mistakes": (400, post("/chats", b'{"client_tools":[%s0]}' % (b"0," * 20_000))),
}


async def test_malformed_requests_are_refused(demo: Served) -> None:
    """And the answer has neither a stack trace nor a header of the sender's making."""
    for name, (status, sent) in REFUSED.items():
        answered, answer = await send(demo.url, sent)
        assert answered == status, (name, answer[-500:])
        assert b"Traceback" not in answer, name
        assert b"\r\nX:" not in answer, name
        assert len(answer) < 5000, name
    async with demo.client("operator") as operator:
        assert (await operator.get("/chats")).json()["items"] == []


@pytest.mark.parametrize(
    "body", [b'{"title":"\xff"}', METADATA % DEEP, METADATA % (b"9" * 5000)], ids=["bytes", "depth", "digits"]
)
async def test_unreadable_body_is_a_problem(ada: httpx.AsyncClient, body: bytes) -> None:
    answer = await ada.post("/chats", content=body, headers={"Content-Type": "application/json"})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (400, "urn:turnwise:problem:invalid-request")
    assert problem["detail"] == (
        "body: must be JSON in UTF-8, nested 100 levels deep at most, with whole numbers of 64 bits at most; "
        "nothing was written"
    )


async def test_forged_event_number_is_refused(demo: Served, ada: httpx.AsyncClient) -> None:
    chat = (await ada.post("/chats", json={})).json()["id"]
    for number in ("-1", "9" * 30, "999", "abc", "1e3", "\xb2", "0x1", "NaN", ""):
        status, answer = await send(demo.url, get(f"/chats/{chat}/events", f"Last-Event-ID: {number}"))
        assert (status, b"Traceback" in answer) == (400, False), number


async def test_giant_body_is_refused_before_it_is_read() -> None:
    """Declared, it is refused at the first line; undeclared, once it is longer than it may be."""
    settings = ServiceSettings(body_limit_bytes=1000, upload_limit_bytes=2000)
    head = f"POST /chats HTTP/1.1\r\n{LINES}Content-Type: application/json\r\n"
    async with served(Engine("sqlite://", model="demo"), settings=settings) as service:
        declared = await send(service.url, f"{head}Content-Length: {'9' * 15}\r\n\r\n".encode(), within=20)
        upload = await send(
            service.url,
            f"POST /chats/import HTTP/1.1\r\n{LINES}Content-Length: 99999\r\n\r\n".replace("ada", "operator").encode(),
            within=20,
        )
        chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
        chunked = await send(service.url, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), chunk, chunk, within=20)
    assert [answer[0] for answer in (declared, upload, chunked)] == [413] * 3


async def test_trickling_body_is_cut_off() -> None:
    """Each byte comes in time; all of them do not."""
    settings = ServiceSettings(upload_patience=0.4)
    async with served(Engine("sqlite://", model="demo"), settings=settings) as service:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(service.url.rpartition(":")[2]))
        writer.write(
            f"POST /chats HTTP/1.1\r\n{LINES}Content-Type: application/json\r\nContent-Length: 999\r\n\r\n".encode()
        )
        with anyio.fail_after(60):
            answered = asyncio.ensure_future(reader.readline())
            while not answered.done():
                writer.write(b" ")
                await asyncio.wait([answered], timeout=0.05)
            line = await answered
        taken = time.monotonic() - began
        writer.close()
    assert line.split()[1] == b"400"
    assert 0.4 <= taken < 40


async def test_deleted_chat_looks_unknown(demo: Served, ada: httpx.AsyncClient) -> None:
    never = f"c{'0' * 25}"
    chat = (await ada.post("/chats", json={})).json()["id"]
    await ada.delete(f"/chats/{chat}")
    async with demo.client("bob") as bob, demo.client("operator") as operator:
        for row in ROUTES:
            if row.method == "GET" and "{chat_id}" in row.path:
                none = await bob.get(row.path.format(chat_id=never))
                for owner in (ada, bob):
                    gone = await owner.get(row.path.format(chat_id=chat))
                    assert (gone.status_code, gone.text.replace(chat, never)) == (404, none.text), row.path
        beside = [await bob.post("/chats", json={"parent": parent}) for parent in (chat, never)]
        gone = await operator.get(f"/chats/{chat}")
    assert beside[0].text.replace(chat, never) == beside[1].text
    assert gone.json()["type"].endswith("chat-deleted")


async def test_unexpected_error_hides_its_message(
    demo: Served, ada: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the key sk-very-secret was refused")

    chat = (await ada.post("/chats", json={})).json()["id"]
    monkeypatch.setattr(demo.engine, "messages", fail)
    refused = await ada.get(f"/chats/{chat}/messages")
    assert refused.status_code == 500
    assert "secret" not in refused.text
    assert "Traceback" not in refused.text
