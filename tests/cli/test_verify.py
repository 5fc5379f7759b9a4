"""`turnwise verify`: a verdict is a sentence."""

from __future__ import annotations

from support.look import look
from turnwise.cli.verify import verdict_line
from turnwise.persistence.audit.verify import Verdict


def test_a_verdict_is_a_sentence() -> None:
    assert look(verdict_line(Verdict(ok=True))) == [
        "[green]✓ sound: the chain is unbroken and every transition is one of the table's[/]"
    ]
    odd = Verdict(ok=False, problem="odd\x1b", position=3)
    assert look(verdict_line(odd)) == [r"[red]✗ not sound at version 3: odd\x1b[/]"]
    assert look(verdict_line(Verdict(ok=False, position=3))) == ["[red]✗ not sound at version 3: [/]"]
