"""The places of a worker, while any number of commits are under way."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.shelf import stands
from turnwise.engine.worker.places import Places, Reserved

_CHATS = ("one", "two", "three")

_chat_ids = st.sampled_from((*_CHATS, None))
_moves = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(-2, 3), _chat_ids),
        st.tuples(st.just("hear"), st.integers(1, 5), _chat_ids),
        st.tuples(st.just("end"), st.integers(0, 9), st.none()),
    ),
    max_size=30,
)


class _Model:
    """What is expected of a reservation: which versions it was told, by chat."""

    def __init__(self, reserved: Reserved, held: ExitStack) -> None:
        self.reserved = reserved
        self.held = held
        self.heard: dict[str | None, int] = {}

    def hear(self, chat_id: str | None, version: int) -> None:
        concerns = chat_id is None or self.reserved.chat_id in (None, chat_id)
        if self.reserved.places > 0 and concerns:
            self.heard[chat_id] = max(version, self.heard.get(chat_id, 0))

    def newest(self, chat_id: str) -> int:
        return max(self.heard.get(chat_id, 0), self.heard.get(None, 0))


@given(_moves)
def test_reservation_hears_of_its_own_chat_only(moves: list[tuple[str, int, str | None]]) -> None:
    places, models = Places(10), list[_Model]()
    for move, number, chat_id in moves:
        if move == "reserve":
            held = ExitStack()
            models.append(_Model(held.enter_context(places.reserve(number, chat_id)), held))
        elif move == "hear":
            places.hear(chat_id, number)
            for model in models:
                model.hear(chat_id, number)
        elif models:
            models.pop(number % len(models)).held.close()
        kept = [model.reserved for model in models if model.reserved.places > 0]
        assert places.free == 10 - sum(reserved.places for reserved in kept)
        assert places.taken is bool(kept)
        for chat in _CHATS:
            assert places.awaits(chat) is any(reserved.chat_id == chat for reserved in kept)
            for model in models:
                for version in range(7):
                    heard_more = model.reserved.has_heard_more(stands(version=version, chat_id=chat))
                    assert heard_more is (version < model.newest(chat))
    for model in models:
        model.held.close()
    assert places.free == 10
    assert not places.taken


def test_failed_commit_frees_its_slot() -> None:
    places = Places(1)
    with pytest.raises(ValueError, match="refused"):
        _fail(places)
    assert places.free == 1
    assert not places.awaits("one")


def _fail(places: Places) -> None:
    with places.reserve(1, "one"):
        assert places.free == 0
        raise ValueError("refused")
