"""What the raw rows of a chat tell: which messages are missing."""

from __future__ import annotations

import pytest

from turnwise.persistence.repair.raw_chat import missing_messages


@pytest.mark.parametrize(
    ("stored", "length", "missing"),
    [
        ({}, 0, []),
        ({}, 2, [1, 2]),
        ({1: 2, 2: 3}, 2, []),
        ({1: 2, 3: 4}, 3, [2]),
        ({1: 2, 3: 4}, 2, [2]),
        ({2: 2, 3: 3}, 3, [1]),
        ({1: 1, 4: 1, 5: 2}, 5, []),
        ({1: 1, 4: 1, 6: 2}, 6, [5]),
        ({1: 2, 2: None, 3: 4}, 3, []),
    ],
    ids=str,
)
def test_gaps_count_except_those_that_a_fork_took_over(
    stored: dict[int, int | None], length: int, missing: list[int]
) -> None:
    """Positions with the versions that added them; the first version is the one that creates a fork."""
    rows = {"messages": [{"position": position, "added": added} for position, added in stored.items()]}
    assert missing_messages(rows, length) == missing


def test_an_absurd_length_is_not_believed() -> None:
    rows = {"messages": [{"position": 1, "added": 2}, {"position": "poison", "added": 2}]}
    assert missing_messages(rows, 10**12) == list(range(2, 1002))
    assert missing_messages({"messages": [{"position": 10**12, "added": 2}]}, 0) == list(range(1, 1002))
