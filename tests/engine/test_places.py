"""The slots of a worker, while commits are under way."""

from __future__ import annotations

import pytest
from tests.engine.shelf import stands

from turnwise.engine.worker.places import Places


def test_reservation_hears_of_its_own_chat_only() -> None:
    """It hears of each chat that is not named, too; a reservation of no slot hears of nothing."""
    places = Places(10)
    with places.reserve(2, "one") as one, places.reserve(1, None) as any_chat, places.reserve(0, "two") as none:
        assert (places.free, places.taken) == (7, True)
        assert [places.awaits(chat_id) for chat_id in ("one", "two")] == [True, False]
        places.hear("one", 3)
        places.hear("two", 5)
        places.hear("one", 2)
        newest = {
            (reserved, chat_id): [one.has_heard_more(stands(version=version, chat_id=chat_id)) for version in range(7)]
            for reserved, one in (("one", one), ("any", any_chat), ("none", none))
            for chat_id in ("one", "two")
        }
        assert {key: sum(heard) for key, heard in newest.items()} == {
            ("one", "one"): 3,
            ("one", "two"): 0,
            ("any", "one"): 3,
            ("any", "two"): 5,
            ("none", "one"): 0,
            ("none", "two"): 0,
        }
        places.hear(None, 4)
        assert one.has_heard_more(stands(version=3, chat_id="one"))
        assert not one.has_heard_more(stands(version=4, chat_id="one"))
    assert (places.free, places.taken) == (10, False)


def test_failed_commit_frees_its_slot() -> None:
    places = Places(1)
    with pytest.raises(ValueError, match="refused"), places.reserve(1, "one"):
        raise ValueError("refused")
    assert places.free == 1
    assert not places.awaits("one")
