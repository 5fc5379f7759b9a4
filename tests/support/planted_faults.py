"""Faults, planted for the length of one test: what checks have to catch before they can be trusted."""

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
    """Let another table hold: each row as `changed` returns it; `None` takes it out."""
    rows = tuple(row for known in TABLE if (row := changed(known)) is not None)
    patch.setattr(table, "TABLE", rows)
    patch.setattr(table, "_ROWS", table._by_place(table.TABLE))
    patch.setattr(machine, "MACHINE", machine.built(rows))
    told = {(row.source, row.target): _deciding._status_events(row.source, row.target) for row in rows}
    patch.setattr(_deciding, "_STATUS", told)


def plant_functions(patch: pytest.MonkeyPatch, instead: Mapping[Any, Any]) -> None:
    """Let rows ask other guards and do other writes than the table names."""

    def swapped(functions: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(instead.get(function, function) for function in functions)

    plant_rows(patch, lambda row: replace(row, when=swapped(row.when), actions=swapped(row.actions)))


def plant_no_refusal(patch: pytest.MonkeyPatch, refusal: Any) -> None:
    """Let a refusal be forgotten wherever it stands."""
    for trigger, refusals in _deciding.REFUSALS.items():
        patch.setitem(_deciding.REFUSALS, trigger, tuple(known for known in refusals if known is not refusal))


def without_rows(trigger: type[Trigger], source: str) -> Callable[[Row], Row | None]:
    """Return what takes the rows of a trigger in a state out of the table."""
    return lambda row: None if (row.trigger, row.source) == (trigger, source) else row


def nothing(_draft: Draft[Any]) -> None:
    """Write nothing."""


def never(_draft: Draft[Any]) -> bool:
    """Agree to nothing."""
    return False


def always(_draft: Draft[Any]) -> bool:
    """Agree to everything."""
    return True
