"""What a person sees of `turnwise demo`, to the word and to the colour, beside what differs from run to run."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from support.look import marked
from support.terminal import Finished

EXPECTED: Final = Path(__file__).parent / "demo_screen.txt"
"""Where this changes on purpose, put what the failing test prints into it."""
DIFFERS: Final = {
    r"All else is real.*?; written is": "All else is real ... ; written is",
    r"c[0-9a-f]{25}-r\d+": "RECEIPT",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}": "TIME",
    r"I am the demo model and cannot know[^\n]*": "I am the demo model and cannot know",
    r"\d+ words were shown, and exactly these are kept ?": "N words were shown, and exactly these are kept",
    r"is \S+ % full \(\S+ of": "is N % full (N of",
    r"(turn [45] ended: end_turn ·) \S+ tokens in, \S+ out": r"\1 N tokens in, N out",
    r"process \d+": "process PID",
    r"(I have what take_note)[^\n]*\n(.*?)(  \[bold red\]☠)": r"\1\n\3",
    r"· (Worker|The lease) .*?takes? over\.\[/\]~*": "· WHY",
    r"✔ \d+ was killed, \d+ finished": "✔ PID was killed, PID finished",
    r"(a turn survives kill -9 of its process  ).*?(  \[green\])": r"\1...\n\2",
    r"(by|client|worker \d+) *\[/\]": lambda found: f"{re.sub('[0-9]+', 'PID', found[1])}[/]",
    r"at version \d+: Version \d+, '\w+': hash is '\w+…": lambda found: f"VERSION {len(found[0])}",
    r"\d+ (records|transitions)": r"N \1",
    r"\n  \d\d  (\[dim\]TIME)": r"\n  N  \1",
    r"(the chat      |its compaction)  [\d,]+ +[\d,]+ +\d+~+": r"\1  N  N  N",
}


def in_one_order(lines: list[str]) -> list[str]:
    """Return the lines, but results that follow each other sorted: tools that run side by side end in any order."""
    return [
        line
        for result, together in groupby(lines, lambda line: line.startswith("  [green]✓"))
        for line in sorted(together, key=lambda line: line if result else "")
    ]


@pytest.mark.deep
def test_demo_screen_matches_snapshot(screen: Finished) -> None:
    seen = "\n".join(marked(screen.out)) + "\n"
    for pattern, word in DIFFERS.items():
        seen = re.sub(pattern, word, seen, flags=re.DOTALL)
    assert in_one_order(seen.splitlines()) == in_one_order(EXPECTED.read_text(encoding="utf-8").splitlines()), seen
