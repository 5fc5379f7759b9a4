"""A decision under way: the facts as they change, the writes and the events that follow."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from turnwise.states.arguments import Arguments
from turnwise.states.calls import ToolCall
from turnwise.states.effects import DropLease, DropQueued, InsertMessage, PutCall, RecordUsage, Write
from turnwise.states.events import Event, MessageEvent, QueueEvent
from turnwise.states.facts import CompactionFacts, Facts, HistoryFacts, Lease, Limits, StepFacts, TurnFacts
from turnwise.states.messages import Message, Part, QueuedMessage, Role, without_metadata
from turnwise.states.names import Audience, ChatState, Tail, job_in
from turnwise.states.usage import Usage, reported


class Draft:
    """Collects what the writes of one row change. Groups of facts are replaced, the whole only once, at the end."""

    __slots__ = (
        "_changes",
        "arguments",
        "before",
        "calls",
        "closing",
        "compaction",
        "events",
        "history",
        "lease",
        "limits",
        "now",
        "queue",
        "serial",
        "step",
        "turn",
        "usage",
        "writes",
    )

    def __init__(self, facts: Facts, arguments: Arguments) -> None:
        self.before: Facts = facts
        """The facts as they were when the trigger came."""
        self.arguments = arguments
        self.now: datetime = arguments["now"]
        """The database's time."""
        self.limits: Limits = arguments["limits"]
        """The settings in force."""
        self.lease: Lease | None = facts.lease
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
        self._changes: dict[str, Any] = {}

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
        tail: Tail | None = None,
        message_id: str | None = None,
        audience: Audience = Audience.everyone,
        call_index: int | None = None,
        partial: bool = False,
        synthetic: bool = False,
    ) -> Message:
        """Append a message to the history, which ends in `tail` now, and show it to whoever may see it."""
        history = self.history
        message = Message(
            id=message_id or self.next_message_id(),
            role=role,
            parts=parts,
            turn=self.turn.number,
            step=0 if role == "user" and not synthetic else self.step.number,
            created_at=self.now,
            position=history.length + 1,
            audience=audience,
            call_index=call_index,
            partial=partial,
            synthetic=synthetic,
        )
        self.history = HistoryFacts(
            length=message.position,
            tail=tail or history.tail,
            boundary=history.boundary,
            foldable=history.foldable + (audience is not Audience.user),
        )
        self.writes.append(InsertMessage(message))
        self.history_changed()
        if audience is not Audience.model:
            self.events.append(MessageEvent(message=without_metadata(message)))
        return message

    def history_changed(self) -> None:
        """Note that this version changes messages."""
        self._changes["history_version"] = self.before.version + 1

    def put_call(self, call: ToolCall) -> None:
        """Insert a call of the current step, or replace what is known of it."""
        others = [known for known in self.calls if known.call_id != call.call_id]
        self.calls = tuple(sorted([*others, call], key=_index))
        self.writes.append(PutCall(call))

    def queue_changed(self) -> None:
        """Show the whole queue."""
        self.events.append(QueueEvent(queue=self.queue))

    def take_queue_head(self) -> QueuedMessage:
        """Take the first message out of the queue; it is about to enter the history."""
        head, *rest = self.queue
        self.queue = tuple(rest)
        self.writes.append(DropQueued(head.id, "taken"))
        return head

    def book(self, usage: Usage | None, *, lost: bool = False) -> None:
        """Add a model call to the ledger, the turn and the chat: as partial if it was silent about usage, or lost."""
        spent = reported(usage)
        if lost:
            spent = spent.marked_partial()
        if self.step.purpose == "summary":
            spent = spent.as_compaction()
        self.usage += spent
        self.turn = dataclasses.replace(self.turn, usage=self.turn.usage + spent)
        self.writes.append(RecordUsage(self.step.purpose, self.turn.number, self.step.number, self.step.attempt, spent))

    def tell_closing(self) -> None:
        """Tell the end of a turn now, because another turn begins in the same decision."""
        self.events.extend(self.closing)
        self.closing.clear()

    def drop_lease(self) -> None:
        """End the lease, if there is one."""
        if self.lease is not None:
            self.writes.append(DropLease(self.lease.token))
            self.lease = None

    def finish(self, target: ChatState, *, moved: bool) -> Facts:
        """Return the facts as they stand after the decision. Entering a state without a job drops the lease."""
        before = self.before
        if job_in(target, settled=self._changes.get("settled", before.settled)) is None:
            self.drop_lease()
        return dataclasses.replace(
            before,
            **self._changes,
            state=target,
            version=before.version + 1,
            lease=self.lease,
            serial=self.serial,
            turn=self.turn,
            step=self.step,
            calls=self.calls,
            queue=self.queue,
            history=self.history,
            compaction=self.compaction,
            usage=self.usage,
            updated_at=self.now,
            since=self.now if moved else before.since,
        )


def _index(call: ToolCall) -> int:
    return call.index
