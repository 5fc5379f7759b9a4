"""What each principal has used up: requests, which come back with time, and streams, which come back as they end."""

from __future__ import annotations

import pytest

from support.clock import StillClock
from turnwise.service import Principal, service
from turnwise.service.problems import RateLimited
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


def test_as_many_requests_as_the_burst_are_taken_at_once_and_no_more(clock: StillClock) -> None:
    rates = Rates(2, 3)
    assert waits(rates, ADA, 5) == [None, None, None, 0.5, 0.5]
    assert waits(rates, BOB, 4) == [None, None, None, 0.5]
    assert waits(rates, Principal("ada", "operator")) == [None], "the name alone is nobody"
    with pytest.raises(RateLimited) as refused:
        rates.spend(ADA)
    assert refused.value.limit == "2 requests a second, 3 at once"


def test_requests_come_back_with_time_up_to_the_burst(clock: StillClock) -> None:
    rates = Rates(2, 3)
    waits(rates, ADA, 3)
    clock.now += 0.25
    assert waits(rates, ADA) == [0.25]
    clock.now += 0.5
    assert waits(rates, ADA, 2) == [None, 0.5]
    clock.now += 1
    assert waits(rates, ADA, 3) == [None, None, 0.5]
    clock.now += 1_000_000
    assert waits(rates, ADA, 4) == [None, None, None, 0.5]


def test_refused_requests_are_no_debt(clock: StillClock) -> None:
    rates = Rates(2, 3)
    waits(rates, ADA, 1000)
    clock.now += 0.5
    assert waits(rates, ADA, 2) == [None, 0.5]


def test_where_no_request_comes_back_it_may_be_tried_again_in_a_minute(clock: StillClock) -> None:
    assert waits(Rates(0, 1), ADA, 2) == [None, 60]


def test_who_sent_none_for_longest_is_forgotten(clock: StillClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_REMEMBERED", 2)
    rates = Rates(0, 1)
    for principal in (ADA, BOB):
        rates.spend(principal)
    assert (waits(rates, BOB), waits(rates, ADA)) == ([60], [60])
    assert (waits(rates, CYD), waits(rates, ADA), waits(rates, BOB)) == ([None], [60], [None])


def test_as_many_streams_as_are_allowed_are_open_at_once_and_no_more() -> None:
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
