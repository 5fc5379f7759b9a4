"""The judge of legality: one process-wide synchronous `transitions.Machine`, built from the table.

It is fired on a throw-away slot and never moves anything itself: it only says which row matches.
"""

from __future__ import annotations

from typing import Any, Final

from transitions import EventData, Machine, Transition
from transitions.core import Condition

from turnwise.states.facts import Facts
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE, Row
from turnwise.states.triggers import Circumstances, Occurrence


def judge(source: str, facts: Facts, occurrence: Occurrence, at: Circumstances) -> Row | None:
    """Return the row that matches, or `None`. The table must have rows for the trigger in `source`."""
    slot = _Slot(source)
    _MACHINE.events[occurrence.trigger].trigger(slot, facts, occurrence, at)
    return slot.row


class _Slot:
    """What the machine is fired on: it holds the place asked about, and receives the row that matches."""

    __slots__ = ("row", "state")

    def __init__(self, state: str) -> None:
        self.state = state
        self.row: Row | None = None


class _Guard(Condition):
    """Asks a guard about the facts and what happens, instead of about the event."""

    def check(self, event_data: EventData) -> bool:
        return bool(self.func(*event_data.args) is self.target)  # type: ignore[operator] # never a name


class _RowTransition(Transition):
    """A transition that hands over the row it was made from. The machine has no callbacks and changes no state."""

    condition_cls = _Guard

    def __init__(self, *args: Any, row: Row, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row = row

    def execute(self, event_data: EventData) -> bool:
        """Whether every guard of the row agrees; then the slot receives the row."""
        for condition in self.conditions:
            if not condition.check(event_data):
                return False
        event_data.model.row = self.row  # type: ignore[attr-defined] # the model is always a slot
        return True


class _TableMachine(Machine):
    transition_cls = _RowTransition


def _built() -> Machine:
    machine = _TableMachine(
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
            conditions=list(row.when),
            unless=list(row.unless),
            row=row,
        )
    return machine


_MACHINE: Final = _built()
