"""The machine of `transitions`: the rows of the table are its transitions, and no others."""

from __future__ import annotations

from turnwise.states import TABLE, ChatState
from turnwise.states.machine import MACHINE
from turnwise.states.names import NEW, UNKNOWN


def test_every_row_is_a_transition_of_the_machine_with_its_guards_as_conditions() -> None:
    """So that whoever knows the library can ask it what the table says."""
    known = [
        (transition.source, name, transition.dest, [(asked.func, asked.target) for asked in transition.conditions])
        for name, event in MACHINE.events.items()
        for transitions in event.transitions.values()
        for transition in transitions
    ]
    wanted = [
        (row.source, row.trigger, row.target, [(g, True) for g in row.when] + [(g, False) for g in row.unless])
        for row in TABLE
    ]
    assert len(known) == len(wanted)
    assert all(row in known for row in wanted)


def test_the_librarys_machine_has_the_states_and_the_triggers_of_the_table_and_no_others() -> None:
    assert {*MACHINE.states} == {NEW, UNKNOWN, *(state.value for state in ChatState)}
    assert {*MACHINE.events} == {row.trigger.value for row in TABLE}
    assert MACHINE.initial == NEW
    assert MACHINE.models == []
