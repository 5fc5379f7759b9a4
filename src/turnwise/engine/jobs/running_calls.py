"""The running tool calls of a batch: each has its own task, so a tool that ignores its cancellation blocks no other."""

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
    """The values that the calls of a batch share."""

    chat: Chat
    """The chat as the batch began."""
    deps: Any


class RunningCalls(msgspec.Struct):
    """The running calls, and the outcomes of finished calls that were not collected yet."""

    environment: ToolEnvironment
    calls: dict[str, RunningCall] = msgspec.field(default_factory=dict)
    _finished: deque[tuple[ToolCall, CallOutcome | FatalToolError]] = msgspec.field(default_factory=deque)
    _bell: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _start_error: Exception | None = None

    @property
    def has_more(self) -> bool:
        """Whether a call still runs, or has finished and was not collected yet."""
        return bool(self.calls or self._finished)

    @property
    def has_results(self) -> bool:
        """Whether a call has finished and was not collected yet."""
        return bool(self._finished)

    def finish(self, call: ToolCall, outcome: CallOutcome | FatalToolError) -> None:
        """Record the outcome of a call. Drops the outcome of a cancelled call."""
        run = self.calls.pop(call.call_id, None)
        if run is not None:
            run.result = outcome
            self._finished.append((call, outcome))
            self._bell.set()

    def fail(self, error: Exception) -> None:
        """Record why a call could not start; `next_finished` raises it."""
        self._start_error = error
        self._bell.set()

    async def next_finished(self) -> tuple[ToolCall, CallOutcome | FatalToolError]:
        """Wait until a call finishes, and return it with its outcome; raise the error of `fail`."""
        while not self._finished:
            if self._start_error is not None:
                raise self._start_error
            self._bell = asyncio.Event()
            await self._bell.wait()
        return self._finished.popleft()

    def cancel_and_collect(self, convert: Callable[[ToolCall, FatalToolError], CallOutcome]) -> list[CallOutcome]:
        """Cancel all running calls.

        Return the outcomes of calls that finished but were not yet collected, and a cancelled outcome for each call
        that never started. `convert` makes an outcome of a `FatalToolError`: the chat ends already for another reason.
        """
        outcomes = [
            outcome if isinstance(outcome, CallOutcome) else convert(call, outcome) for call, outcome in self._finished
        ]
        self._finished.clear()
        for call_id, run in self.calls.items():
            run.cancel()  # first: a tool that has not started by then never does
            if not run.began:
                outcomes.append(_build_cancelled(call_id))
        self.calls.clear()
        return outcomes

    def cancel_all(self) -> None:
        """Cancel all running calls and drop their results."""
        for run in self.calls.values():
            run.cancel()
        self.calls.clear()


class RunningCall(msgspec.Struct):
    """A tool call in progress."""

    context: ToolContext[Any]
    call: UserCall[None] | None = None
    result: CallOutcome | FatalToolError | None = None
    began: bool = False
    """Whether the tool has started, here or on a worker that is gone. A cancelled call never starts."""

    def begin(self) -> None:
        self.began = True

    def cancel(self) -> None:
        self.context.cancelled = True
        if self.call is not None:
            self.call.abandon()


def _build_cancelled(call_id: str) -> CallOutcome:
    return CallOutcome(
        call_id=call_id, status=CallStatus.cancelled, output=ABANDONED_TEXT, is_error=True, synthetic=True
    )
