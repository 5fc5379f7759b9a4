"""Bodies that are read and sent piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from support.served import Served
from turnwise.service.problems import InvalidRequest
from turnwise.service.routes.streamed import begun, lines_of


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
async def test_a_body_is_read_line_by_line_wherever_its_pieces_end(pieces: list[bytes], lines: list[str]) -> None:
    assert [line async for line in lines_of(request_of(*pieces))] == lines


@pytest.mark.parametrize("pieces", [[b"\xff\n"], [b"one\n", b"\xc3"], [b"one\n\xc3", b"\n"]])
async def test_a_body_that_is_no_text_is_refused_even_at_its_last_byte(pieces: list[bytes]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        assert [line async for line in lines_of(request_of(*pieces))] == ["never"]
    assert refused.value.problems == [{"field": "body", "problem": "must be UTF-8"}]


async def test_what_is_begun_is_told_whole() -> None:
    async def counted(most: int) -> AsyncIterator[str]:
        for number in range(most):
            yield str(number)

    for most in (0, 1, 3):
        told = [piece async for piece in await begun(counted(most))]
        assert told == ["0", "1", "2"][:most]


async def test_a_file_comes_as_bytes_that_no_browser_runs(demo: Served, ada: httpx.AsyncClient) -> None:
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


async def test_a_chat_is_exported_as_a_file_of_lines(ada: httpx.AsyncClient) -> None:
    chat = (await ada.post("/chats", json={})).json()["id"]
    exported = await ada.get(f"/chats/{chat}/export")
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert exported.headers["content-disposition"] == f'attachment; filename="{chat}.jsonl"'
