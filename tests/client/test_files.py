"""Lines and files, as they go over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from turnwise.client.files import lines_in, lines_out


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
    assert [line async for line in lines_out(each(*pieces))] == lines


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
    assert [line async for line in lines_in(lines)] == body
