"""The database's clock between two answers: never ahead of it, and not set back without need."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from turnwise.persistence.postgres import database
from turnwise.persistence.postgres.database import DatabaseClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the seconds that this machine has counted."""
    seconds = [100.0]
    monkeypatch.setattr("turnwise.persistence.postgres.database.passed", lambda: seconds[0])
    return seconds


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_clock_continues_from_the_last_answer(passed: list[float]) -> None:
    clock = DatabaseClock(None)
    assert clock.now() is None
    clock.observe(at(0), asked_at=99.0)
    assert clock.now() == at(0)
    passed[0] += 5
    assert clock.now() == at(5)


def test_faster_answer_sets_the_clock_forward(passed: list[float]) -> None:
    clock = DatabaseClock(None)
    clock.observe(at(0), asked_at=90.0)
    passed[0] += 1
    clock.observe(at(3), asked_at=100.5)
    assert clock.now() == at(3)


@pytest.mark.parametrize("counts_sleep", [True, False])
def test_clock_counts_machine_sleep(monkeypatch: pytest.MonkeyPatch, *, counts_sleep: bool) -> None:
    """Otherwise the first commit after a sleep would have an earlier time."""
    slept = [0.0]
    monkeypatch.setattr("turnwise.persistence.postgres.database._CLOCK", 7 if counts_sleep else None)
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: 100 + slept[0], raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    clock = DatabaseClock(None)
    clock.observe(at(0), asked_at=database.passed())
    slept[0] = 8 * 3600
    assert clock.now() == at(8 * 3600 if counts_sleep else 0)
