"""The database's clock between two of its answers: never ahead of it, and never set back without need."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from turnwise.persistence.postgres import server_clock
from turnwise.persistence.postgres.server_clock import DatabaseClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that this machine has counted: a test sets them."""
    seconds = [100.0]
    monkeypatch.setattr("turnwise.persistence.postgres.server_clock.passed", lambda: seconds[0])
    return seconds


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_it_goes_on_from_what_was_heard(passed: list[float]) -> None:
    clock = DatabaseClock(None)
    assert clock.now() is None
    clock.heard(at(0), asked_at=99.0)
    assert clock.now() == at(0)
    passed[0] += 5
    assert clock.now() == at(5)


def test_an_answer_that_took_longer_does_not_set_it_back(passed: list[float]) -> None:
    """What it says may be as old as the question."""
    clock = DatabaseClock(None)
    clock.heard(at(0), asked_at=100.0)
    passed[0] += 10
    clock.heard(at(8), asked_at=107.0)
    assert clock.now() == at(10)


def test_an_answer_that_was_faster_sets_it_forward(passed: list[float]) -> None:
    clock = DatabaseClock(None)
    clock.heard(at(0), asked_at=90.0)
    passed[0] += 1
    clock.heard(at(3), asked_at=100.5)
    assert clock.now() == at(3)


def test_a_clock_that_was_set_back_is_followed(passed: list[float]) -> None:
    """As far as the answer says for sure."""
    clock = DatabaseClock(None)
    clock.heard(at(3600), asked_at=100.0)
    passed[0] += 1
    clock.heard(at(1), asked_at=100.5)
    assert clock.now() == at(1.5)


def test_a_clock_that_is_handed_in_is_the_time() -> None:
    clock = DatabaseClock(lambda: NOON)
    clock.heard(at(99), asked_at=0)
    assert clock.now() == clock.handed_in == NOON


@pytest.mark.parametrize("counts_sleep", [True, False])
def test_the_time_goes_on_while_the_machine_sleeps_if_it_can_tell(
    monkeypatch: pytest.MonkeyPatch, *, counts_sleep: bool
) -> None:
    """Else the first commit after a sleep would have a time of before it."""
    slept = [0.0]
    monkeypatch.setattr("turnwise.persistence.postgres.server_clock._CLOCK", 7 if counts_sleep else None)
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: 100 + slept[0], raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    clock = DatabaseClock(None)
    clock.heard(at(0), asked_at=server_clock.passed())
    slept[0] = 8 * 3600
    assert clock.now() == at(8 * 3600 if counts_sleep else 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such clock, or no name for it")
def test_linux_has_a_clock_that_counts_its_sleep() -> None:
    assert server_clock._CLOCK == time.CLOCK_BOOTTIME
