"""The slots of a worker, while commits are under way."""

from __future__ import annotations

import pytest

from turnwise.engine.worker.places import Places


def test_failed_commit_frees_its_slot() -> None:
    places = Places(1)
    with pytest.raises(ValueError, match="refused"), places.reserve(1, "one"):
        raise ValueError("refused")
    assert places.free == 1
    assert not places.awaits("one")
