"""Timeouts of the client, and the backoff between retries."""

from __future__ import annotations

import random
import time

import anyio

from turnwise.states.values.checked import configuration
from turnwise.states.values.limits import Duration


@configuration()
class ClientSettings:
    """Timeouts of the client, and its retries when the service does not answer.

    Raises:
        SettingsError: a value is not a finite number of seconds.
    """

    timeout: Duration = 60
    """Timeout for the response to a request, in seconds."""
    connect_timeout: Duration = 5
    """Timeout for opening a connection, in seconds."""
    idle_timeout: Duration = 45
    """Close the stream after this many seconds without data. The service sends a heartbeat every 15 seconds."""
    first_delay: Duration = 0.1
    """Seconds before the first retry. Each further retry waits twice as long."""
    max_delay: Duration = 5
    """Maximum delay between two retries, in seconds."""
    retry_timeout: Duration = 60
    """Stop retrying after this many seconds without a response; 0 disables retries."""


class Backoff:
    """Exponential backoff with jitter and an overall deadline."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._attempts = 0
        self._failing_since: float | None = None

    def reset(self) -> None:
        """Start over after a response."""
        self._attempts = 0
        self._failing_since = None

    async def wait(self, at_least: float = 0) -> bool:
        """Sleep until the next retry; return `False`, without sleeping, if the delay would reach `retry_timeout`."""
        doubled = self._settings.first_delay * 2.0 ** min(self._attempts, 30)
        # Jitter spreads the clients of a restarted service.
        spread = random.uniform(0.5, 1)  # noqa: S311 - no secret
        delay = max(at_least, min(doubled, self._settings.max_delay) * spread)
        self._attempts += 1
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since + delay >= self._settings.retry_timeout:
            return False
        await anyio.sleep(delay)
        return True
