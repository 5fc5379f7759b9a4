"""`turnwise audit`: a log as lines."""

from __future__ import annotations

import pytest

from support.audit_records import record
from support.look import look
from turnwise.cli import style
from turnwise.cli.audit import short_actor, timeline

RECORDS = [
    record(9, trigger="renamed", actor="jane", attempt=2),
    record(10, target="streaming", step=7, actor="worker:vm/1:42:x", attempt=2),
]


def test_a_timeline_tells_where_a_state_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style.console, "width", 100)
    assert look(timeline(RECORDS)) == [
        "[dim] #  time (UTC)               trigger  state        step  by       [/]",
        " 9  [dim]2026-01-02 03:04:05.067[/]  renamed  [dim]·          [/]        [dim]jane     [/]",
        "10  [dim]2026-01-02 03:04:05.067[/]  [bold]claimed[/]  [dim]→ [/][cyan]streaming[/]  7.2   [dim]worker 42[/]",
    ]
    monkeypatch.setattr(style.console, "width", 40)
    assert look(timeline(RECORDS)) == [
        "[dim] #  trigger  state      [/]",
        " 9  renamed  [dim]·          [/]",
        "10  [bold]claimed[/]  [dim]→ [/][cyan]streaming[/]",
    ]


@pytest.mark.parametrize(
    ("actor", "told"),
    [
        ("worker:vm/1:42:7:x", "worker 42"),
        ("worker:vm", "worker:vm"),
        ("worker", "worker"),
        ("ops:team:jane", "ops:team:jane"),
        ("jane", "jane"),
    ],
)
def test_of_a_worker_its_process_is_told(actor: str, told: str) -> None:
    assert short_actor(actor) == told
