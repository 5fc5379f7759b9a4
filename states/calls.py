"""Tool calls: what a client declares, what the model asked for, and what came of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import JsonValue

from turnwise.states.names import OPEN_STATUSES, Approval, CallStatus, Crash, Executor


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the model may call and only the client can run."""

    name: str
    description: str
    input_schema: dict[str, Any]
    """JSON schema of the arguments: an object schema."""
    deadline: float | None = field(default=None, kw_only=True)
    """Seconds the client has to answer; `None` waits for ever."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A client's answer to one of its calls. `output` is any JSON value."""

    call_id: str
    output: JsonValue
    is_error: bool = False

    @property
    def approves(self) -> bool | None:
        """What the result says to a call that asks for approval; `None` if it is no answer to that.

        `True` and `{"approved": true}` allow the call; `False`, `{"approved": false}` and any error do not.
        """
        if self.is_error:
            return False
        said = self.output.get("approved") if isinstance(self.output, dict) else self.output
        return said if isinstance(said, bool) else None


@dataclass(frozen=True, slots=True)
class Answer:
    """The proof of how a call was answered: kept for ever, so that a replay finds the first receipt."""

    digest: str
    """SHA-256, hex, of the canonical JSON of (output, is_error)."""
    receipt_id: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call of a step and how far it has come."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    executor: Executor
    index: int
    step: int
    status: CallStatus = CallStatus.planned
    crash: Crash = "at_most_once"
    stop_after: bool = False
    approval: Approval = "not_needed"
    """While it is "asked" the call is the client's; once it is "granted" the call is local."""
    within: float | None = None
    """Seconds a client has to answer once asked."""
    deadline: datetime | None = None
    """When an open client call will be answered `timed_out`."""
    answer: Answer | None = None

    @property
    def open(self) -> bool:
        """Whether the call still lacks its result."""
        return self.status in OPEN_STATUSES

    @property
    def is_local(self) -> bool:
        """Whether turnwise runs the call."""
        return self.executor is Executor.local

    @property
    def is_client(self) -> bool:
        """Whether the client runs the call."""
        return self.executor is Executor.client

    def is_due(self, now: datetime) -> bool:
        """Whether the call is open and its deadline has passed."""
        return self.open and self.deadline is not None and self.deadline <= now

    def with_status(self, status: CallStatus, answer: Answer | None = None) -> ToolCall:
        """Return the call moved on to `status`; a call that has ended has no deadline."""
        deadline = self.deadline if status in OPEN_STATUSES else None
        return dataclasses.replace(self, status=status, answer=answer or self.answer, deadline=deadline)

    def granted(self, answer: Answer) -> ToolCall:
        """Return the call as the client has allowed it: local, and not started."""
        return dataclasses.replace(
            self, executor=Executor.local, approval="granted", answer=answer, deadline=None, status=CallStatus.planned
        )

    def asked_at(self, now: datetime, default: float | None) -> ToolCall:
        """Return the client call with its deadline counted from `now`."""
        seconds = self.within if self.within is not None else default
        deadline = None if seconds is None else now + timedelta(seconds=seconds)
        return dataclasses.replace(self, deadline=deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What became of a call, with the result that the model will see."""

    call_id: str
    status: CallStatus
    output: JsonValue
    is_error: bool
    synthetic: bool = False
    attachments: tuple[Any, ...] = ()
    answer: Answer | None = None
