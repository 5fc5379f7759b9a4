"""Fires every trigger of every chat: one process-wide synchronous `transitions.Machine`, built from the table.

A row is a transition of the library: its guards are the conditions, its actions run before the change of state. The
model is a `Draft`, which lives for one decision; only a store's commit moves a chat.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from transitions import EventData, Machine, Transition

from turnwise.states.draft import Draft
from turnwise.states.names import NEW, UNKNOWN, ChatState
from turnwise.states.table import TABLE, Row, rows_of


def fire(draft: Draft[Any]) -> bool:
    """Take the first row whose guards hold: its actions and target change the draft; `False` if none holds."""
    return bool(MACHINE.events[draft.trigger.name].trigger(draft, draft))


def accepts(draft: Draft[Any]) -> bool:
    """Return whether a row's guards hold; nothing is fired."""
    return any(all(guard(draft) for guard in row.when) for row in rows_of(type(draft.trigger), draft.state))


class _Transition(Transition):
    """A row: of the library's many callbacks it has guards and actions only, and logs nothing."""

    def execute(self, event_data: EventData) -> bool:
        draft: Any = event_data.model
        guards: Any = self.conditions
        actions: Any = self.before
        for guard in guards:
            if not guard.func(draft):
                return False
        for action in actions:
            action(draft)
        draft.state = self.dest
        return True


class _Machine(Machine):
    transition_cls = _Transition


_LOGGER: Final = logging.getLogger("transitions")
if _LOGGER.level == logging.NOTSET:
    _LOGGER.setLevel(logging.WARNING)  # it would log several lines for each transition, at the level of turnwise's own


def built(rows: Iterable[Row]) -> Machine:
    """Return the library's machine of a table."""
    machine = _Machine(model=None, states=[NEW, UNKNOWN, *map(str, ChatState)], initial=NEW, auto_transitions=False)
    for row in rows:
        machine.add_transition(
            row.trigger.name, str(row.source), row.target.value, conditions=[*row.when], before=[*row.actions]
        )
    return machine


MACHINE: Final = built(TABLE)
