"""Faults planted for one test: checks must catch them to be trusted."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from turnwise.states import machine, table
from turnwise.states.draft import Draft
from turnwise.states.table import TABLE, Row
from turnwise.states.triggers import Trigger

_deciding: Any = importlib.import_module("turnwise.states.decide")


def plant_rows(patch: pytest.MonkeyPatch, changed: Callable[[Row], Row | None]) -> None:
    """Replace rows of the table by the result of `changed`; `None` removes a row."""
    rows = tuple(row for known in TABLE if (row := changed(known)) is not None)
    patch.setattr(table, "TABLE", rows)
    patch.setattr(table, "_ROWS", table._by_place(table.TABLE))
    patch.setattr(machine, "MACHINE", machine.built(rows))
    status_events = {(row.source, row.target): _deciding._status_events(row.source, row.target) for row in rows}
    patch.setattr(_deciding, "_STATUS", status_events)


def plant_functions(patch: pytest.MonkeyPatch, instead: Mapping[Any, Any]) -> None:
    """Replace guards and writes of the table's rows."""

    def swapped(functions: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(instead.get(function, function) for function in functions)

    plant_rows(patch, lambda row: replace(row, when=swapped(row.when), actions=swapped(row.actions)))


def plant_no_refusal(patch: pytest.MonkeyPatch, refusal: Any) -> None:
    """Disable a refusal everywhere."""
    for trigger, refusals in _deciding.REFUSALS.items():
        patch.setitem(_deciding.REFUSALS, trigger, tuple(known for known in refusals if known is not refusal))


def without_rows(trigger: type[Trigger], source: str) -> Callable[[Row], Row | None]:
    """Return a change that removes a trigger's rows in a state."""
    return lambda row: None if (row.trigger, row.source) == (trigger, source) else row


def nothing(_draft: Draft[Any]) -> None:
    """Write nothing."""


def never(_draft: Draft[Any]) -> bool:
    return False


def always(_draft: Draft[Any]) -> bool:
    return True
