"""A decision under way: the facts as they change, the writes and the events that follow."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from turnwise.states.arguments import Arguments
from turnwise.states.calls import ToolCall
from turnwise.states.effects import DropLease, DropQueued, InsertMessage, PutCall, Write
from turnwise.states.events import Event, MessageEvent, QueueEvent
from turnwise.states.facts import (
    CompactionFacts,
    Facts,
    HistoryFacts,
    Lease,
    Limits,
    StepFacts,
    TurnFacts,
)
from turnwise.states.messages import (
    Message,
    Part,
    QueuedMessage,
    Role,
    without_metadata,
)
from turnwise.states.names import Audience, Tail
from turnwise.states.usage import Usage


class Draft:
    """Collects what the writes of one row change. Groups of facts are replaced, the whole only once, at the end."""

    __slots__ = (
        "_changes",
        "_facts",
        "arguments",
        "calls",
        "closing",
        "compaction",
        "events",
        "history",
        "queue",
        "serial",
        "step",
        "turn",
        "usage",
        "writes",
    )

    def __init__(self, facts: Facts, arguments: Arguments) -> None:
        self._facts = facts
        self._changes: dict[str, Any] = {}
        self.arguments = arguments
        self.turn: TurnFacts = facts.turn
        self.step: StepFacts = facts.step
        self.calls: tuple[ToolCall, ...] = facts.calls
        self.queue: tuple[QueuedMessage, ...] = facts.queue
        self.history: HistoryFacts = facts.history
        self.compaction: CompactionFacts = facts.compaction
        self.usage: Usage = facts.usage
        self.serial: int = facts.serial
        self.writes: list[Write] = []
        self.events: list[Event] = []
        self.closing: list[Event] = []
        """Events that come after the change of status."""

    @property
    def before(self) -> Facts:
        """The facts as they were when the trigger came."""
        return self._facts

    @property
    def now(self) -> datetime:
        """The database's time."""
        return self.arguments["now"]

    @property
    def limits(self) -> Limits:
        """The settings in force."""
        return self.arguments["limits"]

    @property
    def lease(self) -> Lease | None:
        """The lease as it stands."""
        lease: Lease | None = self._changes.get("lease", self._facts.lease)
        return lease

    def set(self, **changes: Any) -> None:
        """Change facts that stand on their own."""
        self._changes.update(changes)

    def next_message_id(self) -> str:
        """Return a message id never given before in this chat."""
        self.serial += 1
        return f"m{self.serial}"

    def append(  # noqa: PLR0913 - the fields of a message
        self,
        role: Role,
        parts: tuple[Part, ...],
        *,
        message_id: str | None = None,
        audience: Audience = Audience.everyone,
        call_index: int | None = None,
        partial: bool = False,
        synthetic: bool = False,
    ) -> Message:
        """Append a message to the history, and show it to whoever may see it."""
        position = self.history.length + 1
        message = Message(
            id=message_id or self.next_message_id(),
            role=role,
            parts=parts,
            turn=self.turn.number,
            step=0 if role == "user" and not synthetic else self.step.number,
            created_at=self.now,
            position=position,
            audience=audience,
            call_index=call_index,
            partial=partial,
            synthetic=synthetic,
            erased=False,
        )
        seen = audience is not Audience.user
        self.history = dataclasses.replace(self.history, length=position, foldable=self.history.foldable + seen)
        self.writes.append(InsertMessage(message))
        self._changes["history_version"] = self._facts.version + 1
        if audience is not Audience.model:
            self.events.append(MessageEvent(message=without_metadata(message)))
        return message

    def put_call(self, call: ToolCall) -> None:
        """Insert a call of the current step, or replace what is known of it."""
        others = [known for known in self.calls if known.call_id != call.call_id]
        self.calls = tuple(sorted([*others, call], key=lambda known: known.index))
        self.writes.append(PutCall(call))

    def ends_with(self, tail: Tail) -> None:
        """Say how the history ends now."""
        self.history = dataclasses.replace(self.history, tail=tail)

    def queue_changed(self) -> None:
        """Show the whole queue."""
        self.events.append(QueueEvent(queue=self.queue))

    def take_queued(self, queued: QueuedMessage) -> None:
        """Take a message out of the queue, into the history."""
        self.queue = tuple(item for item in self.queue if item.id != queued.id)
        self.writes.append(DropQueued(queued.id, "taken"))

    def tell_closing(self) -> None:
        """Tell the end of a turn now, because another turn begins in the same decision."""
        self.events.extend(self.closing)
        self.closing.clear()

    def drop_lease(self) -> None:
        """End the lease, if there is one."""
        if self.lease is not None:
            self.writes.append(DropLease(self.lease.token))
            self._changes["lease"] = None

    def finish(self, **last: Any) -> Facts:
        """Return the facts as they stand after the decision."""
        return dataclasses.replace(
            self._facts,
            **self._changes,
            turn=self.turn,
            step=self.step,
            calls=self.calls,
            queue=self.queue,
            history=self.history,
            compaction=self.compaction,
            usage=self.usage,
            serial=self.serial,
            **last,
        )
