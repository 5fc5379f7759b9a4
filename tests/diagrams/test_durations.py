"""Durations in words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from turnwise.diagrams.durations import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.25, "0.25 s"), (9.94, "9.9 s"), (12.4, "12 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"),
     (5460, "1 h 31 min"), (86_400, "1 d"), (183_600, "2 d 3 h"), (-1, "0 s"), (59.9, "60 s")],
)  # fmt: skip
def test_duration_has_two_units(seconds: float, words: str) -> None:
    assert duration(timedelta(seconds=seconds)) == words
