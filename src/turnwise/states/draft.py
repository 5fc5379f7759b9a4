"""A decision under way: the facts as they change, the writes and the events that follow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import asdict, replace

from turnwise.states.arguments import Partial, StepReply
from turnwise.states.calls import ToolCall
from turnwise.states.events import AttemptDiscardedEvent, ErrorInfo, Event, MessageEvent, QueueEvent
from turnwise.states.facts import CompactionFacts, Facts, HistoryFacts, Lease, Limits, Profile, StepFacts, TurnFacts
from turnwise.states.left_out import LeftOut
from turnwise.states.messages import (
    Message,
    Part,
    QueuedMessage,
    Role,
    ScheduledMessage,
    Wakeup,
    tokens_in,
    without_secrets,
)
from turnwise.states.names import Audience, ChatState, QueueChange, Stage, StopReason, Tail, job_in
from turnwise.states.step_calls import StepCalls
from turnwise.states.triggers import TransitionContext, Trigger
from turnwise.states.usage import NO_USAGE, Usage, reported
from turnwise.states.values.digests import derived
from turnwise.states.writes import DropLease, DropQueued, InsertMessage, PutCall, RecordUsage, Reserve, Write

_Kind_co = TypeVar("_Kind_co", bound=Trigger, covariant=True)


class Draft(Generic[_Kind_co]):
    """Collects the changes of one row's actions. Groups of facts are replaced as they change, the whole at the end."""

    profile: Profile
    stored_state: str | None
    history_version: int
    settled: bool
    promote: bool
    interrupt_reason: str | None
    archived: bool
    titled: bool
    unread: bool
    lease: Lease | None
    fence: int
    serial: int
    turn: TurnFacts
    step: StepFacts
    calls: StepCalls
    queue: tuple[QueuedMessage, ...]
    ahead: tuple[str, ...]
    """Those that left the queue are dropped with the next change."""
    traces: Mapping[str, str]
    """The traces of future turns; those of messages that left the queue are dropped with the next change."""
    askers: Mapping[str, str]
    """The askers of future turns, dropped with those traces."""
    schedules: tuple[ScheduledMessage, ...]
    history: HistoryFacts
    compaction: CompactionFacts
    usage: Usage
    subagents_usage: Usage
    left_out: tuple[LeftOut, ...]
    background: tuple[str, ...]
    last_error: ErrorInfo | None
    stop_reason: StopReason | None

    def __init__(self, facts: Facts, trigger: _Kind_co, at: TransitionContext) -> None:
        self.before = facts
        """The facts as they were when the trigger came."""
        self.trigger = trigger
        """The trigger, with its arguments."""
        self.at = at
        self.state: str = facts.place
        """The place in the table: the source while guards and actions run, then the target that the machine sets."""
        vars(self).update(zip(_CHANGED_BY_ACTIONS, _what_actions_change(facts), strict=True))
        self.writes: list[Write] = []
        self.events: list[Event] = []
        self.closing: list[Event] = []
        """Events that come after the change of status."""
        self.ended: TurnFacts | None = None
        """The turn that ended, as it was then."""

    @property
    def now(self) -> datetime:
        return self.at.now

    @property
    def limits(self) -> Limits:
        """The settings of the chat's agent that the table asks."""
        return self.at.limits

    @property
    def version(self) -> int:
        return self.before.version + 1

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
        steered: bool = False,
        instead_of: Message | None = None,
        reply: StepReply | Partial | None = None,
        wakeup: Wakeup | None = None,
    ) -> Message:
        """Append a message to the history, which then ends in `tail`, and show it to those who may see it.

        A message that stands `instead_of` another keeps that one's turn and step.
        """
        history = self.history
        message: Message = Message.of(
            id=message_id or self.next_message_id(),
            role=role,
            parts=parts,
            turn=instead_of.turn if instead_of else self.turn.number,
            step=instead_of.step if instead_of else 0 if role == "user" and not synthetic else self.step.number,
            created_at=self.now,
            position=history.length + 1,
            audience=audience,
            call_index=call_index,
            partial=partial,
            synthetic=synthetic,
            steered=steered,
            wakeup=wakeup,
            **(_origin_of(reply, self.turn) if instead_of is None else _answered_by(instead_of)),
        )
        self.history = HistoryFacts(
            length=message.position,
            tail=tail or history.tail,
            boundary=history.boundary,
            foldable=history.foldable + (audience is not Audience.user),
        )
        expected = self.compaction.next_tokens
        if audience is not Audience.user and expected is not None:
            self.compaction = replace(self.compaction, next_tokens=expected + tokens_in(parts))
        self.writes.append(InsertMessage(message, self.salt_of(message.id)))
        self.history_changed()
        if audience is not Audience.model:
            self.events.append(MessageEvent(message=without_secrets(message)))
        return message

    def salt_of(self, *names: str) -> str:
        return derived(self.at.salt, self.version, *names)

    def history_changed(self) -> None:
        self.history_version = self.version

    def put_calls(self, *calls: ToolCall) -> None:
        """Insert or update calls of the current step."""
        put = [self._salted(call) for call in calls]
        self.calls = self.calls.put(*put)
        self.writes.extend(PutCall(call, new=self.before.calls.get(call.call_id) is None) for call in put)

    def _salted(self, call: ToolCall) -> ToolCall:
        """Return a new call with a salt; an existing one keeps its salt, or has lost it in an erasure."""
        if call.salt or not self.at.salt or self.before.calls.get(call.call_id) is not None:
            return call
        return replace(call, salt=self.salt_of("call", call.call_id))

    def take_back(self, reason: str) -> None:
        """Publish that the shown parts of the open attempt are discarded."""
        if self.step.attempt_open and self.step.stage is Stage.asking:
            self.events.append(AttemptDiscardedEvent(step=self.step.number, attempt=self.step.attempt, reason=reason))

    def queue_changed(
        self, change: QueueChange, *ids: str, message: QueuedMessage | None = None, before: str | None = None
    ) -> None:
        if self.ahead or self.traces or self.askers:
            waiting = {queued.id for queued in self.queue}
            self.ahead = tuple(queued for queued in self.ahead if queued in waiting)
            self.traces = {queued: trace for queued, trace in self.traces.items() if queued in waiting}
            self.askers = {queued: asker for queued, asker in self.askers.items() if queued in waiting}
        self.events.append(QueueEvent(change=change, ids=ids, message=message, before=before))

    def take_queue_head(self) -> QueuedMessage:
        """Take the first message out of the queue; it is about to enter the history."""
        head, *rest = self.queue
        self.queue = tuple(rest)
        self.writes.append(DropQueued(head.id, "taken"))
        return head

    def ask_first_model(self) -> None:
        """Ask the agent's first model again, if another one was asked; its context window is not that one's."""
        if self.turn.fallback_from:
            self.turn = replace(self.turn, fallback_from=())
            self.compaction = replace(self.compaction, context_limit=None)

    def book(self, usage: Usage | None, *, lost: bool = False) -> None:
        """Add a model call to the ledger, the turn and the chat; marked partial if it was lost or reported no usage."""
        spent = reported(usage)
        if lost:
            spent = spent.marked_partial()
        if self.step.purpose == "summary":
            spent = spent.as_compaction()
        self.usage += spent
        self.turn = replace(self.turn, usage=self.turn.usage + spent)
        self._enter(spent)

    def reserve(self) -> None:
        """Reserve the estimate of the attempt that begins, if there are budgets that pay for it."""
        if self.at.funds is not None:
            most = self.at.funds.estimator.most(self.compaction.next_tokens or 0)
            self.writes.append(Reserve(self.step.number, self.step.attempt, most.tokens, most.cost))

    def book_title(self, usage: Usage) -> None:
        """Add the model calls for a title to the ledger and the chat; to no turn, for another one may be under way."""
        spent = reported(usage)
        self.usage += spent
        self.writes.append(RecordUsage("title", 0, 0, 0, spent, **self._spender))

    def book_nothing(self) -> None:
        """Add an attempt that called no model to the ledger: its usage is nothing, not unknown."""
        self._enter(NO_USAGE)

    def _enter(self, spent: Usage) -> None:
        place = (self.step.purpose, self.turn.number, self.step.number, self.step.attempt)
        self.writes.append(RecordUsage(*place, spent, **self._spender))

    @property
    def _spender(self) -> dict[str, Any]:
        """When a model call is booked, and for whom."""
        return {"at": self.now, "agent": self.profile.agent, "model": self.limits.asked_model or None}

    def publish_closing(self) -> None:
        """Emit the end of a turn now, because another turn begins in the same decision."""
        self.events.extend(self.closing)
        self.closing.clear()

    def drop_lease(self) -> None:
        if self.lease is not None:
            self.writes.append(DropLease(self.lease.token))
            self.lease = None

    def finish(self, *, event_count: int) -> Facts:
        """Return the facts after the decision, which emits `event_count` events.

        Entering a state without a job drops the lease.
        """
        before, target = self.before, ChatState(self.state)
        if job_in(target, settled=self.settled) is None:
            self.drop_lease()
        key, model = before.declared_key, before.capped_model
        if target is ChatState.pending:
            key, model = self.limits.declared_key(self.profile), self.limits.capped_model
        return Facts(
            **dict(zip(_CHANGED_BY_ACTIONS, _what_actions_change(self), strict=True)),
            chat_id=before.chat_id,
            state=target,
            version=self.version,
            last_seq=before.last_seq + event_count,
            updated_at=self.now,
            since=before.since if target == before.place else self.now,
            declared_key=key,
            capped_model=model,
        )


_DECIDED_AT_THE_END: Final = {
    "chat_id", "state", "version", "last_seq", "updated_at", "since", "declared_key", "capped_model"
}  # fmt: skip
_CHANGED_BY_ACTIONS: Final = tuple(name for name in Facts.__struct_fields__ if name not in _DECIDED_AT_THE_END)
_what_actions_change: Final = attrgetter(*_CHANGED_BY_ACTIONS)


def _origin_of(reply: StepReply | Partial | None, turn: TurnFacts) -> dict[str, Any]:
    """Return the fields of a model's message that name its origin."""
    if reply is None or reply.origin is None:
        return {}
    finish_reason = reply.provider_reason if isinstance(reply, StepReply) else None
    own = {"usage": reply.usage, "finish_reason": finish_reason, "fallback_from": turn.fallback_from}
    return {**asdict(reply.origin), **own}


def _answered_by(message: Message) -> dict[str, Any]:
    """Return the fields that say who gave the answer for which another message stands now."""
    return {"agent": message.agent, "model": message.model, "provider": message.provider}
