"""A body that a service breaks off: its content is given as it came, and what it says of the reason is not."""

from __future__ import annotations

import pytest

from turnwise.client.broken_off import BrokenOff

MARK = "0123abcd"
PROBLEM = b'{"type":"x"}'


def cut(whole: bytes, size: int) -> list[bytes]:
    return [whole[first : first + size] for first in range(0, len(whole), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 39])
@pytest.mark.parametrize("content", [b"", b"so much", b"0123abc", b"0123abc0123abc", b"0" * 20])
def test_content_and_problem_are_separated(content: bytes, size: int) -> None:
    body = BrokenOff(MARK)
    came = b"".join(map(body.content, cut(content + MARK.encode() + PROBLEM, size)))
    assert came == content
    assert body.problem == {"type": "x"}


@pytest.mark.parametrize("size", [1, 7, 19])
@pytest.mark.parametrize("mark", [MARK, ""])
def test_body_without_problem_is_all_content(mark: str, size: int) -> None:
    content = b"so much, and 0123abc"
    body = BrokenOff(mark)
    assert b"".join(map(body.content, cut(content, size))) + body.rest == content
    assert body.problem is None
