"""The constants of the client, and the delays between tries that follow from them."""

from __future__ import annotations

import random
import time

import anyio

from turnwise.states.values.checked import configuration
from turnwise.states.values.limits import Duration


@configuration()
class ClientSettings:
    """How long the client waits, and how it comes back to a service that does not answer.

    Raises:
        InvalidArgument: a value is no number of seconds, or has no end.
    """

    timeout: Duration = 60
    """Seconds within which a request has to be answered."""
    connect_timeout: Duration = 5
    """Seconds within which a connection has to stand; a network that swallows packets says nothing by itself."""
    silence: Duration = 45
    """Seconds of silence after which a stream is taken for dead; a service says something every 15."""
    first_delay: Duration = 0.1
    """Seconds before the second try. Each further one waits twice as long."""
    max_delay: Duration = 5
    """The longest time between two tries, in seconds."""
    retry_timeout: Duration = 60
    """Seconds without any answer after which the client gives up; 0 tries once."""


class Backoff:
    """Counts the tries, and the time, since there was no answer."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._tries = 0
        self._since: float | None = None

    def reset(self) -> None:
        """Start over: there was an answer."""
        self._tries = 0
        self._since = None

    async def wait(self, at_least: float = 0) -> bool:
        """Wait until the next try; return whether there is to be one.

        Args:
            at_least: seconds that the service has asked for.
        """
        doubled = self._settings.first_delay * 2.0 ** min(self._tries, 30)
        # Jitter: clients of a restarted service come back at different moments.
        spread = random.uniform(0.5, 1)  # noqa: S311 - no secret
        delay = max(at_least, min(doubled, self._settings.max_delay) * spread)
        self._tries += 1
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since + delay >= self._settings.retry_timeout:
            return False
        await anyio.sleep(delay)
        return True
