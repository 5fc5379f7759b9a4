"""Bodies that are read and sent piece by piece."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message

from support.served import Served
from turnwise import FileNotFound, StoreError, TurnwiseError
from turnwise.client import broken_off
from turnwise.service.problems import InvalidRequest, problem_of
from turnwise.service.routes.streamed import PROBLEM_AFTER, lines_of, streamed


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
    assert [line async for line in lines_of(request_of(*pieces))] == lines


@pytest.mark.parametrize("pieces", [[b"\xff\n"], [b"one\n", b"\xc3"], [b"one\n\xc3", b"\n"]])
async def test_body_that_is_no_utf8_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        assert [line async for line in lines_of(request_of(*pieces))] == ["never"]
    assert refused.value.problems == [{"field": "body", "problem": "must be UTF-8"}]


async def broken(pieces: list[bytes], error: Exception) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    raise error


async def body_of(response: StreamingResponse, into: list[bytes]) -> None:
    async for piece in response.body_iterator:
        into += [piece.encode() if isinstance(piece, str) else bytes(piece)]


@pytest.mark.parametrize("error", [FileNotFound("c1", "0" * 64, "is damaged"), StoreError("secret")])
async def test_broken_body_ends_with_its_problem(error: TurnwiseError) -> None:
    """Nobody takes it for whole, and who knows the mark learns what a problem that came at once would have said."""
    response = await streamed(broken([b"so much", b" and"], error), media_type="a/b", headers={"ETag": "x"})
    body: list[bytes] = []
    with pytest.raises(type(error)):
        await body_of(response, body)
    content, _, problem = b"".join(body).partition(response.headers[PROBLEM_AFTER].encode())
    assert (content, response.headers["etag"]) == (b"so much and", "x")
    assert json.loads(problem) == problem_of(error)
    assert b"secret" not in problem
    assert broken_off.PROBLEM_AFTER == PROBLEM_AFTER
    another = await streamed(broken([b"so much"], error), media_type="a/b", headers={})
    assert another.headers[PROBLEM_AFTER] != response.headers[PROBLEM_AFTER]


async def test_file_is_served_as_an_attachment(demo: Served, ada: httpx.AsyncClient) -> None:
    chat = (await ada.post("/chats", json={})).json()["id"]
    said: dict[str, Any] = {"content": b"<script>", "headers": {"Content-Type": "text/html"}}
    part = (await ada.post("/files", params={"chat": chat}, **said)).json()
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
