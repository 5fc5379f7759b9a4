"""Judges which transitions are legal: one process-wide synchronous `transitions.Machine`, built from the table.

Rows are its transitions, guards their conditions. It is asked which transition matches, and never fired: only a store's
commit moves a chat.
"""

from __future__ import annotations

from typing import Any, Final, cast

from transitions import Machine, Transition

from turnwise.states.facts import Facts
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE, Guard, Row
from turnwise.states.triggers import Circumstances, Occurrence


def judge(source: str, facts: Facts, occurrence: Occurrence, at: Circumstances) -> Row | None:
    """Return the row that matches in `source`, or `None`."""
    for row, conditions in _CHOICES.get((occurrence.trigger, source), ()):
        for guard, wanted in conditions:
            if guard(facts, occurrence, at) != wanted:
                break
        else:
            return row
    return None


_Condition = tuple[Guard[Any], bool]
"""A function that is asked, and what it must answer."""


class _RowTransition(Transition):
    """A transition that knows the row it was made from."""

    def __init__(self, *args: Any, row: Row, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row = row


class _TableMachine(Machine):
    transition_cls = _RowTransition


def _built() -> Machine:
    machine = _TableMachine(
        model=None,
        states=[NEW, UNKNOWN, *(state.value for state in ChatState)],
        initial=NEW,
        auto_transitions=False,
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


def _prepared(machine: Machine) -> dict[tuple[str, str], list[tuple[Row, list[_Condition]]]]:
    """Return rows and their conditions by trigger and source: looking them up takes longer than asking them."""
    return {
        (trigger, source): [
            (transition.row, [(cast("Guard[Any]", one.func), one.target) for one in transition.conditions])
            for transition in cast("list[_RowTransition]", machine.get_transitions(trigger, source))
        ]
        for trigger, event in machine.events.items()
        for source in event.transitions
    }


MACHINE: Final = _built()
"""Every row of the table as a transition of the library: to inspect, never to fire."""
_CHOICES: Final = _prepared(MACHINE)
