"""`turnwise verify`: a verdict is a sentence."""

from __future__ import annotations

import pytest

from support.look import look
from support.terminal import Terminal
from turnwise.cli.verify import verdict_line
from turnwise.persistence.audit.verify import Verdict


def test_verdict_is_a_sentence() -> None:
    assert look(verdict_line(Verdict(ok=True))) == [
        "[green]✓ sound: the chain is unbroken and every transition is one of the table's[/]"
    ]
    odd = Verdict(ok=False, problem="odd\x1b", position=3)
    assert look(verdict_line(odd)) == [r"[red]✗ not sound at version 3: odd\x1b[/]"]
    assert look(verdict_line(Verdict(ok=False, position=3))) == ["[red]✗ not sound at version 3: [/]"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("verify", "log.jsonl", "--family"), "--family: an exported log is of one chat alone"),
        (("verify", "log.jsonl", "--files"), "--files: an exported log holds no files"),
        (("verify", "log.jsonl", "--server", "http://host"), "--server: an exported log is read here"),
        (("replay", "log.jsonl", "--server", "http://host"), "--server: an exported log is read here"),
    ],
)
def test_unanswerable_checks_are_reported(terminal: Terminal, arguments: tuple[str, ...], told: str) -> None:
    terminal.run("chat", typed="hello\n")
    assert terminal.run("audit", "last", "--export", "log.jsonl").code == 0
    refused = terminal.run(*arguments)
    assert (refused.code, told in refused.words, "sound" in refused.words) == (2, True, False), refused
    assert terminal.run(*arguments[:2]).code == 0
