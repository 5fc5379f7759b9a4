"""A step of a log, to the cell and to the colour."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from support.audit_records import AT, record
from support.look import look
from turnwise.cli.step_view import Step, state_picture, step_lines, steps_of
from turnwise.persistence.audit.record import AuditRecord, WriteRecord
from turnwise.persistence.audit.verify import Verdict


def step_of(version: int, **told: Any) -> AuditRecord:
    """Return the record of what a worker did in the third attempt of a second step."""
    writes = tuple(WriteRecord("event", f"e{number}", "") for number in range(4))
    some: dict[str, Any] = {"actor": "worker:vm:42:x", "step": 2, "attempt": 3, "writes": writes}
    some["at"] = AT + timedelta(seconds=version)
    return record(version, **some | told)


WIDE = [
    "                          [dim]  executing_tools[/]",
    "[dim]  waiting[/]      [yellow]◦ pending[/]  [cyan]▶ streaming[/]        [dim]  requires_action[/]",
    "[dim]  interrupted[/]             [dim]  compacting[/]       [dim]  error[/]",
]
NARROW = [
    "[dim]  waiting[/]      [yellow]◦ pending[/]",
    "[cyan]▶ streaming[/]    [dim]  executing_tools[/]",
    "[dim]  compacting[/]   [dim]  requires_action[/]",
    "[dim]  interrupted[/]  [dim]  error[/]",
]


@pytest.mark.parametrize(("width", "picture"), [(62, WIDE), (61, NARROW)])
def test_states_are_drawn_in_columns(width: int, picture: list[str]) -> None:
    lines = state_picture("streaming", "pending", width=width)
    assert look(*lines) == picture
    assert [line.plain for line in lines] == [line.plain.rstrip() for line in lines]


def test_step_prints_actor_trigger_and_writes() -> None:
    step = Step(step_of(7, source="pending", target="streaming", reason="why"), timedelta(seconds=1), "wrong")
    told = [
        "[dim]7/9 [/][bold]claimed[/]",
        "[cyan]pending → streaming[/]",
        "[dim]by [/]worker 42",
        "[dim]2026-01-02 03:04:12.067[/]  +1 s",
        "[dim]turn 1 · step 2 · attempt 3[/]",
        "[dim]because: [/]why",
        "[red]✗ wrong[/]",
    ]
    writes = [f"[dim]  writes [/]event[dim] e{number}[/]" for number in range(4)]
    for most in (None, 11, 20):
        assert look(*step_lines(step, of=9, width=80, most=most)) == [*told, *writes]
    assert look(*step_lines(step, of=9, width=80, most=10)) == [*told, *writes[:2], "[dim]  … and 2 more[/]"]
    for most in (8, 1):
        assert look(*step_lines(step, of=9, width=80, most=most)) == [*told, "[dim]  … and 4 more[/]"]


def test_step_marks_a_clock_going_back() -> None:
    """A clock may be set back: that is told, and is not taken for a pause of no time."""
    last = step_of(2, at=AT - timedelta(hours=2))
    *_, step = steps_of([step_of(1, at=AT), last], Verdict(ok=True))
    assert look(*step_lines(step, of=2, width=80))[3] == "[dim]2026-01-02 01:04:05.067[/]  -2 h"
