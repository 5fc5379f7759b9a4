"""How all chats of a store stand, in figures, and which workers it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from turnwise.states.values.values import Value
from turnwise.states.writes import RecordUsage


class StateCount(msgspec.Struct, frozen=True):
    """How many chats are in a state."""

    open: int = 0
    archived: int = 0


class Oldest(msgspec.Struct, frozen=True):
    """Since when the oldest chats are where they are."""

    actions: Mapping[str, datetime]
    """In `requires_action` and not archived, by whose action is needed."""
    work: Mapping[str, datetime]
    """Held by a worker, by state."""
    at: datetime | None
    """The database server's time; `None` if the store uses this machine's clock."""


class LedgerPage(msgspec.Struct, frozen=True):
    """Some model calls of all chats."""

    entries: Sequence[tuple[str | None, RecordUsage]]
    """Each with the owner of its chat; those that cannot be read are left out."""
    next: tuple[int, int, int] | None
    """Where the next page begins; `None` after the last one."""


class WorkerReport(Value, frozen=True, kw_only=True):
    """The report of a worker."""

    started_at: datetime
    agents: dict[str, tuple[str, ...]]
    max_running: int
    lease: float


class SeenWorker(msgspec.Struct, frozen=True):
    """A worker that has reported."""

    name: str
    report: WorkerReport
    seen_at: datetime


class HeldChat(Value, frozen=True, kw_only=True):
    """A chat that a worker holds."""

    chat_id: str
    """The chat's id."""
    worker: str
    """The worker's name."""
    state: str
    """The chat's state."""
    agent: str
    """The chat's agent."""
    owner: str | None
    """The chat's owner."""
    since: datetime | None
    """When the chat came to its state; `None` if that cannot be read."""


class Fleet(msgspec.Struct, frozen=True):
    """The workers of a store, and what they hold."""

    workers: Sequence[SeenWorker]
    held: Sequence[HeldChat]
    """The chats that are longest in their states, up to the limit."""
    at: datetime
    """By the clock that counts there."""
