"""The clock of a client's retries: time passes only while somebody sleeps."""


class ClientClock:
    """Stands in for `time`, `anyio` and `random`, as far as a client waits by them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.spread = 1.0
        """Where in its range a throw falls, from 0 to 1."""
        self.passing = 0.0
        """Seconds that pass between two looks at the time."""

    def monotonic(self) -> float:
        """Return the time."""
        self.now += self.passing
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept.append(seconds)
        self.now += seconds

    def uniform(self, low: float, high: float) -> float:
        """Throw the dice."""
        return low + (high - low) * self.spread
