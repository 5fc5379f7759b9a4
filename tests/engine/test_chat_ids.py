"""No two chats have one id, unless one owner's client asked twice for the same."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.engine.chat_ids import chat_id_for, new_chat_id

OWNERS = st.none() | st.text(max_size=3)


def test_chat_ids_are_unique() -> None:
    assert len({new_chat_id() for _ in range(10_000)}) == 10_000


def test_chat_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For five hundred years: the id of a moment is as long as that of any other."""
    ids = []
    for milliseconds in (0, 1, 255, 256, 4095, 10**12, 10**12 + 1, 17 * 10**12):
        monkeypatch.setattr(time, "time_ns", lambda now=milliseconds: now * 1_000_000)
        ids.append(new_chat_id())
    assert ids == sorted(ids)
    assert {len(chat_id) for chat_id in ids} == {26}
    assert {chat_id[0] for chat_id in ids} == {"c"}


@given(OWNERS, st.text(max_size=3), OWNERS, st.text(max_size=3))
def test_client_id_names_one_chat_per_owner(owner: str | None, one: str, other: str | None, two: str) -> None:
    same = (owner, one) == (other, two)
    assert (chat_id_for(owner, one) == chat_id_for(other, two)) is same
    assert len(chat_id_for(owner, one)) == 26
