"""The watchdog: what is too late to begin or silent for too long is ended, and nothing else is."""

from __future__ import annotations

import itertools

import pytest

from turnwise import ModelPart, Usage
from turnwise.engine.jobs.retries import LONGEST_TIMEOUT_S, longer
from turnwise.engine.jobs.watchdog import Watchdog
from turnwise.states.errors import ModelError
from turnwise.testing import ManualClock

WORD = ModelPart("text_delta", text="a")
Bites = list[ModelError]


def watching(*, startup: float | None = 10, idle: float | None = 4) -> tuple[ManualClock, Bites, Watchdog]:
    clock, bites = ManualClock(), Bites()
    clock.advance(100)
    return clock, bites, Watchdog(clock, bites.append, startup=startup, idle=idle)


@pytest.mark.parametrize("idle", [4, None])
async def test_reply_that_does_not_start_times_out(idle: float | None) -> None:
    clock, bites, dog = watching(idle=idle)
    clock.advance(9.9)
    assert bites == []
    clock.advance(0.1)
    (bite,) = bites
    assert (bite.kind, bite.retryable) == ("startup_timeout", True)
    assert "no part within 10 s" in bite.message
    assert dog.first_part_after is None
    assert clock.next_timer is None


@pytest.mark.parametrize("startup", [10, None])
@pytest.mark.parametrize("pauses", [[0], [9], [3, 3, 3, 3], [1, 3.5, 0.5, 3.9], [9, 3.9, 3.9]])
async def test_silent_reply_times_out(pauses: list[float], startup: float | None) -> None:
    clock, bites, dog = watching(startup=startup)
    for pause in pauses:
        clock.advance(pause)
        dog.heard(WORD)
        assert bites == []
    clock.advance(3.9)
    assert bites == []
    clock.advance(0.1)
    (bite,) = bites
    assert (bite.kind, bite.retryable) == ("network", True)
    assert "no part for 4 s" in bite.message
    assert dog.first_part_after == pytest.approx(pauses[0])
    assert clock.next_timer is None


SAYING = [
    ModelPart("reasoning_delta", text="a"),
    ModelPart("reasoning_delta", signature="s"),
    ModelPart("text_delta", metadata={"id": "m"}),
    ModelPart("tool_call_start", id="c", name="f"),
    ModelPart("tool_call_delta", id="c", arguments="{"),
    ModelPart("tool_call", id="c", name="f", arguments={}),
    ModelPart("usage", usage=Usage(input_tokens=2)),
]
SILENT = [
    ModelPart("heartbeat"),
    ModelPart("text_delta"),
    ModelPart("reasoning_delta", signature=""),
    ModelPart("tool_call_delta", id="c"),
    ModelPart("tool_call_delta", id="c", arguments=""),
    ModelPart("usage", usage=Usage(input_tokens=1)),
]


@pytest.mark.parametrize(
    ("part", "late"),
    [*((part, False) for part in SAYING), *((part, True) for part in SILENT)],
    ids=lambda value: value.type if isinstance(value, ModelPart) else None,
)
async def test_empty_parts_do_not_reset_the_timeout(part: ModelPart, *, late: bool) -> None:
    clock, bites, dog = watching()
    dog.heard(ModelPart("usage", usage=Usage(input_tokens=1)))
    dog.heard(WORD)
    clock.advance(3)
    dog.heard(part)
    clock.advance(3)
    assert bool(bites) is late


@pytest.mark.parametrize(
    "part", [ModelPart("usage", usage=Usage(input_tokens=2)), ModelPart("reasoning_delta", metadata={"id": "r"})]
)
async def test_empty_start_is_no_first_part(part: ModelPart) -> None:
    """The reply has not begun with it: the start-up limit goes on."""
    clock, bites, dog = watching(idle=1)
    dog.heard(part)
    clock.advance(9.9)
    assert bites == []
    assert dog.first_part_after is None
    clock.advance(0.1)
    assert [(bite.kind, bite.timed_out) for bite in bites] == [("startup_timeout", True)]


@pytest.mark.parametrize("heard", [0, 1, 2])
async def test_stopped_watchdog_leaves_no_timer(heard: int) -> None:
    clock, bites, dog = watching()
    for _ in range(heard):
        clock.advance(3)
        dog.heard(WORD)
    dog.stop()
    dog.stop()
    assert clock.next_timer is None
    clock.advance(1000)
    assert bites == []


def test_timeouts_double_up_to_ten_minutes() -> None:
    limits = [longer(20, failures) or 0 for failures in range(40)]
    assert limits[:6] == [20, 40, 80, 160, 320, LONGEST_TIMEOUT_S]
    assert LONGEST_TIMEOUT_S == 600
    assert set(limits[5:]) == {LONGEST_TIMEOUT_S}
    assert [longer(900, failures) for failures in (0, 1, 50)] == [900] * 3, "it was asked for"
    assert [longer(None, failures) for failures in (0, 1, 50)] == [None] * 3
    tiny = [longer(0.001, failures) or 0 for failures in range(100)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(tiny))
    assert tiny[10] == pytest.approx(1.024)
