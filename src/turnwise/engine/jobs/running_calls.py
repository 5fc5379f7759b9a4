"""The calls that run now, of one batch: each in its own task, so one that ignores its cancellation blocks no other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from turnwise.engine.config.results import Chat
from turnwise.engine.isolation.user_code import UserCall
from turnwise.engine.tools.context import ToolContext
from turnwise.states.actions.calls import ABANDONED_TEXT
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import FatalToolError
from turnwise.states.names import CallStatus


class ToolEnvironment(msgspec.Struct, frozen=True):
    """What the calls of a batch share."""

    chat: Chat
    """The chat as the batch began."""
    deps: Any


class Running(msgspec.Struct):
    """The calls that run now, and those that have ended and were not taken yet."""

    environment: ToolEnvironment
    calls: dict[str, Run] = msgspec.field(default_factory=dict)
    _finished: deque[tuple[ToolCall, CallOutcome | FatalToolError]] = msgspec.field(default_factory=deque)
    _bell: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _broken_off: Exception | None = None

    @property
    def has_more(self) -> bool:
        """Whether a call still runs, or has ended and was not taken yet."""
        return bool(self.calls or self._finished)

    @property
    def has_results(self) -> bool:
        """Whether a call has ended and was not taken yet."""
        return bool(self._finished)

    def finish(self, call: ToolCall, outcome: CallOutcome | FatalToolError) -> None:
        """Record the outcome of a call; that of an abandoned call is dropped."""
        run = self.calls.pop(call.call_id, None)
        if run is not None:
            run.result = outcome
            self._finished.append((call, outcome))
            self._bell.set()

    def break_off(self, reason: Exception) -> None:
        """Record why a call could not begin; `next_finished` raises it."""
        self._broken_off = reason
        self._bell.set()

    async def next_finished(self) -> tuple[ToolCall, CallOutcome | FatalToolError]:
        """Wait until a call ends, and return it with its outcome.

        Raises:
            Exception: a call could not begin; the reason that `break_off` recorded.
        """
        while not self._finished:
            if self._broken_off is not None:
                raise self._broken_off
            self._bell = asyncio.Event()
            await self._bell.wait()
        return self._finished.popleft()

    def stop(self, outcome_of: Callable[[ToolCall, FatalToolError], CallOutcome]) -> list[CallOutcome]:
        """Stop the running calls; return the outcomes of calls that ended unnoticed or never started.

        Args:
            outcome_of: makes an outcome of a tool's wish to end the chat, which ends for another reason.
        """
        outcomes = [
            outcome if isinstance(outcome, CallOutcome) else outcome_of(call, outcome)
            for call, outcome in self._finished
        ]
        self._finished.clear()
        for call_id, run in self.calls.items():
            run.stop()  # first: a tool that has not started by then never does
            if not run.began:
                outcomes.append(_cancelled(call_id))
        self.calls.clear()
        return outcomes

    def abandon(self) -> None:
        """Cancel what still runs; results that come late are dropped."""
        for run in self.calls.values():
            run.stop()
        self.calls.clear()


class Run(msgspec.Struct):
    """One run of one call."""

    context: ToolContext[Any]
    call: UserCall[None] | None = None
    result: CallOutcome | FatalToolError | None = None
    began: bool = False
    """Whether the tool has started, here or on a worker that is gone. A stopped call never starts."""

    def begin(self) -> None:
        """Note that the tool begins."""
        self.began = True

    def stop(self) -> None:
        """Tell the tool to end."""
        self.context.cancelled = True
        if self.call is not None:
            self.call.abandon()


def _cancelled(call_id: str) -> CallOutcome:
    return CallOutcome(
        call_id=call_id, status=CallStatus.cancelled, output=ABANDONED_TEXT, is_error=True, synthetic=True
    )
