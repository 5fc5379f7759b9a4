"""A body that a service breaks off: its content is given as it came, and what it says of the reason is not."""

from __future__ import annotations

import pytest

from turnwise.client.broken_off import BrokenOff

MARK = "0123abcd"
PROBLEM = b'{"type":"x"}'


def cut(whole: bytes, size: int) -> list[bytes]:
    return [whole[first : first + size] for first in range(0, len(whole), size)]


@pytest.mark.parametrize("size", range(1, 40))
@pytest.mark.parametrize("content", [b"", b"so much", b"0123abc", b"0123abc0123abc", b"0" * 20])
def test_content_and_problem_are_told_apart_wherever_they_were_cut(content: bytes, size: int) -> None:
    body = BrokenOff(MARK)
    came = b"".join(map(body.content, cut(content + MARK.encode() + PROBLEM, size)))
    assert came == content
    assert body.problem == {"type": "x"}


@pytest.mark.parametrize("size", range(1, 20))
@pytest.mark.parametrize("mark", [MARK, ""])
def test_a_body_without_a_problem_is_all_content(mark: str, size: int) -> None:
    content = b"so much, and 0123abc"
    body = BrokenOff(mark)
    assert b"".join(map(body.content, cut(content, size))) + body.rest == content
    assert body.problem is None


def test_a_problem_that_did_not_come_whole_is_none() -> None:
    body = BrokenOff(MARK)
    assert body.content(MARK.encode() + PROBLEM[:-1]) == b""
    assert body.problem is None


def test_content_is_given_as_soon_as_it_cannot_be_the_mark() -> None:
    assert BrokenOff(MARK).content(b"so much") == b""
    assert BrokenOff(MARK).content(b"so much, and more") == b"so much, a"
