"""What each principal has used up: requests, which come back with time, and streams, which come back as they end."""

from __future__ import annotations

import pytest

from support.clock import StillClock
from turnwise.service import Principal, service
from turnwise.service.problems import RateLimited, problem_response
from turnwise.service.service import Rates, Streams

ADA, BOB, CYD = Principal("ada"), Principal("bob"), Principal("cyd")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StillClock:
    clock = StillClock()
    monkeypatch.setattr(service, "time", clock)
    return clock


def waits(rates: Rates, principal: Principal, count: int = 1) -> list[float | None]:
    """Send so many requests; return after how many seconds each may be tried again, `None` of those that are taken."""
    told: list[float | None] = []
    for _ in range(count):
        try:
            rates.spend(principal)
            told.append(None)
        except RateLimited as limited:
            told.append(limited.retry_after)
    return told


def test_burst_is_the_limit_at_once(clock: StillClock) -> None:
    rates = Rates(2, 3)
    assert waits(rates, ADA, 5) == [None, None, None, 0.5, 0.5]
    assert waits(rates, BOB, 4) == [None, None, None, 0.5]
    assert waits(rates, Principal("ada", "operator")) == [None], "the name alone is nobody"
    with pytest.raises(RateLimited) as refused:
        rates.spend(ADA)
    assert refused.value.limit == "2 requests a second, 3 at once"


def test_tokens_refill_up_to_the_burst(clock: StillClock) -> None:
    rates = Rates(2, 3)
    waits(rates, ADA, 3)
    clock.now += 0.25
    assert waits(rates, ADA) == [0.25]
    clock.now += 0.5
    assert waits(rates, ADA, 2) == [None, 0.25]
    clock.now += 1
    assert waits(rates, ADA, 3) == [None, None, 0.25]
    clock.now += 1_000_000
    assert waits(rates, ADA, 4) == [None, None, None, 0.5]


@pytest.mark.parametrize("sent_per_second", [9, 11, 100])
def test_long_run_rate_equals_the_limit(clock: StillClock, sent_per_second: int) -> None:
    """Ten a second, for a minute, and the burst."""
    rates = Rates(10, 3)
    taken = 0
    for place in range(sent_per_second * 60):
        clock.now = 1000 + place / sent_per_second
        taken += waits(rates, ADA) == [None]
    assert taken == pytest.approx(min(sent_per_second * 60, 3 + 10 * 60), abs=1)


@pytest.mark.parametrize("per_second", [0.03, 0.7, 50, 444.5379106221935])
@pytest.mark.parametrize("started", [0, 1e8])
def test_waiting_retry_after_is_enough(clock: StillClock, per_second: float, started: float) -> None:
    """The number of the problem, what its sentence says, and the header in whole seconds."""
    clock.now = started
    for as_told in (
        lambda refused: refused.retry_after,
        lambda refused: float(str(refused).partition("try again in ")[2].partition(" s")[0]),
        lambda refused: float(problem_response(refused).headers["retry-after"]),
    ):
        rates = Rates(per_second, 2)
        for pause in [0.1, 0.37, 0.6, 0.8] * 10:
            with pytest.raises(RateLimited) as refused:  # noqa: PT012 - the second or third is refused
                for _ in range(4):
                    rates.spend(ADA)
                    clock.now += pause / per_second / 4
            clock.now += as_told(refused.value)
            rates.spend(ADA)


def test_least_recent_principal_is_forgotten(clock: StillClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_REMEMBERED", 2)
    rates = Rates(0, 1)
    for principal in (ADA, BOB):
        rates.spend(principal)
    assert (waits(rates, BOB), waits(rates, ADA)) == ([60], [60])
    assert (waits(rates, CYD), waits(rates, ADA), waits(rates, BOB)) == ([None], [60], [None])


def test_stream_limit_counts_open_streams() -> None:
    streams = Streams(2)
    with streams.opened(ADA):
        with streams.opened(ADA), streams.opened(BOB), streams.opened(BOB):
            assert streams.count == 4
            with pytest.raises(RateLimited) as refused, streams.opened(ADA):
                pass
            assert (refused.value.limit, refused.value.retry_after) == ("2 open streams", 5)
            assert streams.count == 4
        assert streams.count == 1
        with pytest.raises(ValueError, match="broken"), streams.opened(ADA):  # noqa: PT012 - it has to end there
            assert streams.count == 2
            raise ValueError("broken")
        assert streams.count == 1
    assert streams.count == 0
