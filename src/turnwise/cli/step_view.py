"""How a step of a log looks: the states with the current one marked, and what was fired, by whom, with what writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich.text import Text

from turnwise.cli.audit import short_actor
from turnwise.cli.style import STATE_STYLE, excerpt, moment
from turnwise.diagrams.durations import duration
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.audit.verify import Verdict
from turnwise.states.names import ChatState

_COLUMNS: Final = (4, 2)
"""Columns of the picture of the states on a wide and on a narrow screen."""
_CURRENT: Final = "▶ "
_BEFORE: Final = "◦ "
_NEITHER: Final = "  "
_GAP: Final = 2
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Step:
    """One record of a log, as it is shown."""

    record: AuditRecord
    after: timedelta | None
    """The time since the record before, by the clock that both tell, which may have been set; `None` for the first."""
    problem: str | None
    """What is wrong with it."""


def steps_of(records: Sequence[AuditRecord], verdict: Verdict) -> list[Step]:
    """Return the steps of a log up to the first that is wrong: what comes after it says nothing."""
    checked = records if verdict.ok else records[: verdict.position]
    return [
        Step(
            record,
            after=None if number == 0 else record.at - checked[number - 1].at,
            problem=verdict.problem if not verdict.ok and verdict.position == number + 1 else None,
        )
        for number, record in enumerate(checked)
    ]


def state_picture(state: str, before: str | None, *, width: int) -> list[Text]:
    """Return the states as lines: the current one is marked, and where the chat has come from."""
    wide, narrow = (_grid(columns) for columns in _COLUMNS)
    grid = wide if sum(_widths(wide)) <= width else narrow
    widths = _widths(grid)
    lines = []
    for row in grid:
        line = Text()
        for name, room in zip(row, widths, strict=True):
            mark = _CURRENT if name == state else _BEFORE if name == before else _NEITHER
            style = "dim"
            if name == state:
                style = f"{STATE_STYLE.get(name, '')} reverse"
            elif name == before:
                style = STATE_STYLE.get(name, "")
            cell = Text(f"{mark}{name}" if name else "", style=style if name else "")
            line.append_text(cell).append(" " * (room - cell.cell_len))
        line.rstrip()
        lines.append(line)
    return lines


def step_lines(step: Step, *, of: int, width: int, most: int | None = None) -> list[Text]:
    """Return a step as lines, none wider than `width`; of many writes only as many as `most` leaves."""
    record, moved = step.record, step.record.source != step.record.target
    way = f"{record.source or 'new'} → {record.target}" if moved else f"stays in {record.target}"
    style = STATE_STYLE.get(record.target, "")
    numbers = f"turn {record.turn} · step {record.step} · attempt {record.attempt}" if record.turn else ""
    pause = "" if step.after is None else f"  {_pause(step.after)}"
    lines = [
        Text.assemble((f"{record.version}/{of} ", "dim"), (excerpt(record.trigger, width), "bold")),
        Text(excerpt(way, width - 2), style=style),
        Text.assemble(("by ", "dim"), excerpt(short_actor(record.actor), width)),
        Text.assemble((f"{moment(record.at)}", "dim"), pause),
    ]
    if numbers:
        lines.append(Text(numbers, style="dim"))
    if record.reason is not None:
        lines.append(Text.assemble(("because: ", "dim"), excerpt(record.reason, width)))
    if step.problem is not None:
        lines.append(Text(f"✗ {excerpt(step.problem, 4 * width)}", style="red"))
    lines += _writes(step, width, None if most is None else max(most - len(lines), 1))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _pause(after: timedelta) -> str:
    """Return how much later a step was than the one before: earlier, by what the clock says, if it was set back."""
    return f"{'-' if after < timedelta() else '+'}{duration(timedelta(milliseconds=round(abs(after) / _MILLISECOND)))}"


def _writes(step: Step, width: int, most: int | None) -> Iterator[Text]:
    writes = step.record.writes
    first = writes if most is None or len(writes) <= most else writes[: most - 1]
    for write in first:
        yield Text.assemble(("  writes ", "dim"), excerpt(write.kind, width), (f" {excerpt(write.id, width)}", "dim"))
    if len(first) < len(writes):
        yield Text(f"  … and {len(writes) - len(first)} more", style="dim")


def _grid(columns: int) -> list[list[str]]:
    names = [*map(str, ChatState), *[""] * (-len(ChatState) % columns)]
    return [names[first : first + columns] for first in range(0, len(names), columns)]


def _widths(grid: Sequence[Sequence[str]]) -> list[int]:
    last = len(grid[0]) - 1
    return [
        len(_CURRENT) + max(map(len, column)) + (_GAP if place < last else 0)
        for place, column in enumerate(zip(*grid, strict=True))
    ]
