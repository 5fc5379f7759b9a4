"""Moving time in tests, once code waits for it."""

from datetime import timedelta

from turnwise.testing.clock import ManualClock


class StillClock:
    """A stand-in for `time` that only tests move."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


async def due_in(clock: ManualClock, seconds: float) -> None:
    """Wait until the next timer of the clock is due in that many seconds; a visible event may precede its timer."""
    while clock.next_timer != clock.now() + timedelta(seconds=seconds):
        await clock.advance(0)


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Move the clock by the seconds once a timer waits for exactly that time and none for an earlier one."""
    await due_in(clock, seconds)
    await clock.advance(seconds)
