"""The watchdog of an attempt: ends it if the model takes too long to begin or falls silent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from turnwise.engine.isolation.clock import ROUNDING, Clock, Timeout, Timer
from turnwise.providers.protocol import ModelPart
from turnwise.states.model_errors import STARTUP_TIMEOUT, ModelError, ModelErrorKind
from turnwise.states.usage import Usage


class Watchdog:
    """Watches one attempt. Start-up (opening plus first part) and silence between parts have separate limits.

    One timer serves all parts. It is not reset by each part; when it fires, it is set again for the remaining time.

    Args:
        end: called with the error when a limit is passed.
        startup, idle: the limits in seconds; `None` waits for ever.
    """

    def __init__(
        self, clock: Clock, end: Callable[[ModelError], object], *, startup: float | None, idle: float | None
    ) -> None:
        self._clock = clock
        self._end = end
        self._idle = idle
        self._opened = clock.monotonic()
        self._first: float | None = None
        self._last: float
        self._usage: Usage | None = None
        self._timer: Timer | None = None
        if startup is not None:
            problem = f"no part within {startup:g} s of opening the stream"
            self._timer = Timeout(clock, startup, partial(self._time_out, STARTUP_TIMEOUT, problem))

    @property
    def first_part_after(self) -> float | None:
        """Seconds from opening to the first part with content; `None` before it came."""
        return None if self._first is None else self._first - self._opened

    def note(self, part: ModelPart) -> float:
        """Note a part, and return the time. Empty parts do not count: the stream may be dead.

        Usage, or the empty start of a block, does not count as the first part.
        """
        now = self._clock.monotonic()
        if not self._says_something(part):
            return now
        self._last = now
        if self._first is None and _has_content(part):
            self._first = now
            self.stop()
            if self._idle is not None:
                self._timer = Timeout(self._clock, self._idle, partial(self._look, self._idle))
        return now

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _says_something(self, part: ModelPart) -> bool:
        match part.type:
            case "heartbeat":
                return False
            case "text_delta" | "reasoning_delta":
                return bool(part.text or part.signature or part.metadata)
            case "tool_call_delta":
                return bool(part.arguments)
            case "usage":
                before, self._usage = self._usage, part.usage
                return part.usage != before
            case _:
                return True

    def _look(self, idle: float) -> None:
        silent = self._clock.monotonic() - self._last
        if silent >= idle - ROUNDING:
            self._time_out("network", f"the stream stalled: no part for {idle:g} s")
        else:
            self._timer = Timeout(self._clock, idle - silent, partial(self._look, idle))

    def _time_out(self, kind: ModelErrorKind, message: str) -> None:
        self._end(ModelError(kind, message=message, timed_out=True))


def _has_content(part: ModelPart) -> bool:
    if part.type in ("text_delta", "reasoning_delta"):
        return bool(part.text or part.signature)
    return part.type != "usage"
