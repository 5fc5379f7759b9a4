"""Marks stand where a message was put aside: they keep of it what can be read, and say nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from msgspec.structs import replace

from turnwise.persistence.repair.marks import MARK, is_mark, mark_at, mark_for
from turnwise.states.messages import Message, TextPart
from turnwise.states.names import Audience

AT: Final = datetime(2026, 11, 22, tzinfo=UTC)
ROW: Final = {"position": 7, "id": "m7", "role": "user", "turn": 3, "step": 4, "audience": "model"}


def _mark(**values: Any) -> Message:
    mark = mark_for({**ROW, **values}, AT)
    assert mark is not None
    return mark


@pytest.mark.parametrize(
    ("column", "stored", "kept"),
    [
        *(("id", stored, kept) for stored, kept in (("m7", "m7"), (b"m7", "unreadable-7"), (None, "unreadable-7"))),
        *(("role", role, role) for role in ("user", "assistant", "system")),
        *(("role", role, "user") for role in ("poison", None, b"system", "")),
        *((count, stored, kept) for count in ("turn", "step") for stored, kept in ((0, 0), (9, 9), ("9", 0), (-1, 0))),
        *(("audience", audience.value, audience) for audience in Audience),
        *(("audience", stored, Audience.everyone) for stored in ("poison", None, b"user")),
        ("position", 1, 1),
        ("position", 0, 0),
    ],
)
def test_a_mark_keeps_what_can_be_read_and_stands_for_the_rest(column: str, stored: object, kept: object) -> None:
    mark = _mark(**{column: stored})
    assert getattr(mark, column) == kept
    told = {**ROW, "position": 7} | {column: kept}
    assert {name: getattr(mark, name) for name in ROW} == told
    assert (mark.created_at, mark.text) == (AT, MARK)
    assert is_mark(mark)


@pytest.mark.parametrize("position", ["poison", -1, None])
def test_a_message_without_a_place_gets_no_mark(position: object) -> None:
    assert mark_for({**ROW, "position": position}, AT) is None


def test_a_result_is_marked_like_a_missing_message() -> None:
    """A result without its content is none."""
    assert _mark(role="tool") == mark_at(7, AT)


def test_a_missing_message_is_marked_for_the_user_alone() -> None:
    mark = mark_at(5, AT)
    assert is_mark(mark)
    assert (mark.position, mark.id, mark.audience, mark.turn, mark.step) == (5, "unreadable-5", Audience.user, 0, 0)
    assert (mark.role, mark.created_at) == ("system", AT)


def test_only_what_a_repair_has_written_is_a_mark() -> None:
    mark = mark_at(5, AT)
    assert not is_mark(replace(mark, synthetic=False))
    assert not is_mark(replace(mark, parts=(TextPart(text="hello"),)))
