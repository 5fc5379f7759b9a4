"""How a test lets time pass: once somebody waits for it."""

from datetime import timedelta

from turnwise.testing.clock import ManualClock


class StillClock:
    """Stands in for `time`: it stands still until it is moved."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


async def due_in(clock: ManualClock, seconds: float) -> None:
    """Wait until the next timer of the clock is due in so many seconds: what was seen may come before it is set."""
    while clock.next_timer != clock.now() + timedelta(seconds=seconds):
        await clock.advance(0)


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Let so much time pass once something waits for its end, and nothing for an earlier moment."""
    await due_in(clock, seconds)
    await clock.advance(seconds)
