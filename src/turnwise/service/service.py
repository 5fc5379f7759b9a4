"""The state that the routes of one service share: engine, policy, rates and open streams."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from turnwise.engine.engine import Engine
from turnwise.http_problems import RateLimited
from turnwise.service.auth import Authenticator, Principal
from turnwise.service.policy import Choices, Policy
from turnwise.service.settings import ServiceSettings
from turnwise.states.errors import StoreError

_MAX_PRINCIPALS: Final = 10_000
"""The most principals, or addresses, whose requests are counted; the least recent is forgotten first."""
_DRAWS_PER_BURST: Final = 20
"""In how many draws a replica could take a whole burst: each costs a write."""
_PROBE_INTERVAL_S: Final = 0.1
_PROBE_TIMEOUT_S: Final = 2.0
_ENOUGH: Final = 0.99
"""Of a request: `Retry-After` is rounded to three digits, so a client that obeys it may come a little early."""


class Rates:
    """Counts requests to this process by name of their sender: a bucket each, which fills again with time."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, sender: str) -> None:
        """Count a request, or raise `RateLimited`. Refused requests cost nothing: a fast client keeps its rate."""
        now = time.monotonic()
        allowance, at = self._buckets.pop(sender, (float(self._burst), now))
        allowance = min(self._burst, allowance + (now - at) * self._per_second)
        is_taken = allowance >= _ENOUGH
        self._buckets[sender] = (allowance - 1 if is_taken else allowance, now)
        if len(self._buckets) > _MAX_PRINCIPALS:
            self._buckets.popitem(last=False)
        if not is_taken:
            raise limited(self._per_second, self._burst, allowance)


class _Drawn:
    """Requests that this process has drawn for a principal and not spent."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = asyncio.Lock()


class SharedRates:
    """Counts requests by principal for all replicas, in the database: each draws a few at a time.

    What replicas have drawn and not spent is theirs: all together never exceed the limit. While the database is away
    each replica keeps to its own `Rates` alone.
    """

    def __init__(self, engine: Engine, per_second: float, burst: int) -> None:
        self._engine, self._per_second, self._burst = engine, per_second, burst
        self._drawn: OrderedDict[str, _Drawn] = OrderedDict()

    async def spend(self, principal: Principal) -> None:
        """Count a request, or raise `RateLimited`."""
        name = principal.actor
        drawn = self._drawn.setdefault(name, _Drawn())
        self._drawn.move_to_end(name)
        if len(self._drawn) > _MAX_PRINCIPALS:
            self._drawn.popitem(last=False)
        async with drawn.lock:
            if not drawn.count:
                per_second, burst, size = self._per_second, self._burst, max(1, self._burst // _DRAWS_PER_BURST)
                try:
                    drawn.count, left = await self._engine.draw(name, wanted=size, per_second=per_second, burst=burst)
                except StoreError:
                    return
                if not drawn.count:
                    raise limited(per_second, burst, left)
            drawn.count -= 1


def limited(per_second: float, burst: int, allowance: float) -> RateLimited:
    """Return the error for a sender with less than one request of allowance left."""
    wait = (1 - allowance) / per_second if per_second else 60.0
    return RateLimited(f"{per_second:g} requests a second, {burst} at once", wait)


class Streams:
    """Counts open streams by principal."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are open."""
        return self._open.total()

    @contextmanager
    def opened(self, principal: Principal) -> Iterator[None]:
        """Count a stream while it is open, or raise `RateLimited`."""
        if self._open[principal.actor] >= self._most:
            raise RateLimited(f"{self._most} open streams", 5)
        self._open[principal.actor] += 1
        try:
            yield
        finally:
            self._open[principal.actor] -= 1
            if not self._open[principal.actor]:
                del self._open[principal.actor]


class Readiness:
    """Checks whether the store takes writes. Requests need no token for it, so concurrent ones share one write."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._probe: asyncio.Task[Exception | None] | None = None
        self._probed_at = 0.0

    async def check(self) -> None:
        """Raise the error that keeps the store from taking writes."""
        if self._probe is None or (self._probe.done() and time.monotonic() - self._probed_at > _PROBE_INTERVAL_S):
            self._probe = asyncio.ensure_future(self._problem())
        await asyncio.wait([self._probe], timeout=_PROBE_TIMEOUT_S)
        if not self._probe.done():
            raise StoreError(f"the store took no write within {_PROBE_TIMEOUT_S:g} s", written="unknown", passing=True)
        if (problem := self._probe.result()) is not None:
            raise problem

    async def _problem(self) -> Exception | None:
        try:
            await self._engine.check_writable()
        except Exception as error:  # noqa: BLE001 - the caller gets it
            return error
        finally:
            self._probed_at = time.monotonic()
        return None


class Service:
    """An engine, served."""

    def __init__(self, engine: Engine, authenticate: Authenticator, settings: ServiceSettings, policy: Policy) -> None:
        self.engine = engine
        self.authenticate = authenticate
        self.settings = settings
        self.policy = policy
        self.rates = Rates(settings.requests_per_second, settings.burst)
        self.unknown_rates = Rates(settings.requests_per_second, settings.burst)
        self.shared_rates = SharedRates(engine, settings.requests_per_second, settings.burst)
        self.streams = Streams(settings.streams_per_owner)
        self.readiness = Readiness(engine)
        self.choices = Choices.of(engine, settings.models)
