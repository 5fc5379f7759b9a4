"""Deciding: pure, synchronous, and the only way to move a chat."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final, Unpack

from transitions import EventData, Machine, Transition

from turnwise.states.arguments import Arguments
from turnwise.states.draft import Draft
from turnwise.states.effects import Write
from turnwise.states.errors import BrokenPromise, IllegalTransition
from turnwise.states.events import Event, StatusEvent
from turnwise.states.facts import Facts
from turnwise.states.invariants import broken_promises
from turnwise.states.names import JOBS, NEW, UNKNOWN, ChatState, Job, Trigger
from turnwise.states.refusals import REFUSALS
from turnwise.states.table import TABLE, Guard, Row, rows_of, triggers_in


@dataclass(frozen=True, slots=True)
class Decision:
    """What a trigger does to a chat: performed whole, in one transaction, or not at all."""

    trigger: Trigger
    source: str | None
    """The state it starts from; `None` for a chat that did not exist."""
    target: ChatState
    facts: Facts
    """The facts afterwards."""
    writes: tuple[Write, ...]
    """What a store does, in order."""
    events: tuple[Event, ...]
    """What subscribers see, in order."""
    actor: str
    reason: str | None


def decide(facts: Facts, trigger: Trigger, **arguments: Unpack[Arguments]) -> Decision:
    """Return what `trigger` does to a chat of which `facts` hold.

    Nothing is read, written or awaited: the same facts and arguments always give the same decision.

    Raises:
        IllegalTransition: the table has no matching row.
        TurnwiseError: a refusal of bad input, see `refusals`.
        BrokenPromise: the facts afterwards would break an invariant.
    """
    source = place_of(facts)
    if not rows_of(trigger, source):
        raise IllegalTransition(source, trigger, triggers_in(source))
    for refuse in REFUSALS[trigger]:
        refuse(facts, arguments)
    row = _judge(source, trigger, facts, arguments)
    if row is None:
        raise IllegalTransition(source, trigger, triggers_in(source))
    return _perform(row, facts, arguments)


def legal_triggers(facts: Facts) -> tuple[Trigger, ...]:
    """Return the triggers that the table knows where the chat stands."""
    return triggers_in(place_of(facts))


def job_of(facts: Facts) -> Job | None:
    """Return the job that runs while the chat is as `facts` say."""
    if facts.stored_state is not None or (facts.state is ChatState.interrupted and facts.settled):
        return None
    return JOBS.get(facts.state)


def place_of(facts: Facts) -> str:
    """Return where the table sees the chat: its state, `NEW` or `UNKNOWN`."""
    if facts.version == 0:
        return NEW
    return UNKNOWN if facts.stored_state is not None else facts.state


def _perform(row: Row, facts: Facts, arguments: Arguments) -> Decision:
    draft = Draft(facts, arguments)
    for write in row.writes:
        write(draft)
    moved = row.source != row.target
    after = draft.finish(
        state=row.target,
        version=facts.version + 1,
        updated_at=draft.now,
        since=draft.now if moved else facts.since,
    )
    if after.lease is not None and job_of(after) is None:
        draft.drop_lease()
        after = dataclasses.replace(after, lease=None)
    broken = broken_promises(after)
    if broken:
        raise BrokenPromise(facts.chat_id, row.trigger, broken)
    previous = None if row.source in (NEW, UNKNOWN) else facts.state
    status = (StatusEvent(state=row.target, previous=previous),) if moved else ()
    return Decision(
        trigger=row.trigger,
        source=None if row.source == NEW else facts.stored_state or row.source,
        target=row.target,
        facts=after,
        writes=tuple(draft.writes),
        events=(*draft.events, *status, *draft.closing),
        actor=arguments.get("actor", "system"),
        reason=arguments.get("reason"),
    )


class _Slot:
    """The throw-away object that the process-wide machine is fired on."""

    __slots__ = ("row", "state")

    def __init__(self, state: str) -> None:
        self.state = state
        self.row: Row | None = None


class _RowTransition(Transition):  # type: ignore[misc]
    """A transition that remembers the row it was made from."""

    def __init__(self, *args: object, row: Row, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.row = row

    def _change_state(self, event_data: EventData) -> None:
        event_data.model.row = self.row


class _Machine(Machine):  # type: ignore[misc]
    transition_cls = _RowTransition


def _asked_of(guard: Guard) -> object:
    def ask(event: EventData) -> bool:
        return guard(event.kwargs["facts"], event.kwargs["arguments"])

    return ask


def _built() -> Machine:
    machine = _Machine(
        model=None,
        states=[NEW, UNKNOWN, *(state.value for state in ChatState)],
        initial=NEW,
        auto_transitions=False,
        send_event=True,
        queued=False,
    )
    for row in TABLE:
        machine.add_transition(
            row.trigger.value,
            str(row.source),
            row.target.value,
            conditions=[_asked_of(guard) for guard in row.when],
            unless=[_asked_of(guard) for guard in row.unless],
            row=row,
        )
    return machine


_MACHINE: Final = _built()


def _judge(source: str, trigger: Trigger, facts: Facts, arguments: Arguments) -> Row | None:
    slot = _Slot(str(source))
    _MACHINE.events[trigger.value].trigger(slot, facts=facts, arguments=arguments)
    return slot.row
