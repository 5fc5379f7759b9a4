"""Patience: how long to wait before the next try, and when to give up."""

from __future__ import annotations

import random
import time

import anyio

from turnwise.client.settings import ClientSettings


class Patience:
    """Counts the tries, and the time, since an answer did not come."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._tries = 0
        self._since: float | None = None

    def renew(self) -> None:
        """Begin anew: there was an answer."""
        self._tries = 0
        self._since = None

    async def wait(self, at_least: float = 0) -> bool:
        """Wait until the next try; return whether there is to be one.

        Args:
            at_least: seconds that the service has asked for.
        """
        doubled = self._settings.first_delay * 2.0 ** min(self._tries, 30)
        # Not all clients of a service that was started again are to come back in the same moment.
        spread = random.uniform(0.5, 1)  # noqa: S311 - no secret
        delay = max(at_least, min(doubled, self._settings.max_delay) * spread)
        self._tries += 1
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since + delay >= self._settings.patience:
            return False
        await anyio.sleep(delay)
        return True
