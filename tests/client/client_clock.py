"""The clock of a client's retries: time passes only during sleeps."""


class ClientClock:
    """Stands in for `time`, `anyio` and `random` in a client's waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.spread = 1.0
        """The position of a random number in its range, from 0 to 1."""
        self.passing = 0.0
        """Seconds between two reads of the clock."""

    def monotonic(self) -> float:
        self.now += self.passing
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.slept.append(seconds)
        self.now += seconds

    def uniform(self, low: float, high: float) -> float:
        """Return the configured position in the range."""
        return low + (high - low) * self.spread
