"""A caption says less than a row and nothing that is not so."""

import pytest

from turnwise.diagrams.caption import Caption, captions
from turnwise.diagrams.model import Line, Term


def line(trigger: str, when: str = "", unless: str = "", *, otherwise: bool = False) -> Line:
    demanded, excluded = (tuple(Term(name, "") for name in names.split()) for names in (when, unless))
    return Line(trigger, "client", demanded, excluded, actions=(), otherwise=otherwise)


@pytest.mark.parametrize(
    ("lines", "condition"),
    [
        ([line("go")], ""),
        ([line("go", "queue_waits", "settled")], "queue waits"),
        ([line("go", unless="settled")], "not settled"),
        ([line("go", unless="settled", otherwise=True)], "otherwise"),
        ([line("go", "settled late"), line("go", "settled early")], "settled, late or early"),
        ([line("go", "settled late"), line("go", "settled")], "settled"),
        ([line("go", "late"), line("go", unless="late", otherwise=True)], ""),
        ([line("go", unless="late"), line("go", unless="settled")], ""),
    ],
)
def test_rows_of_a_trigger_are_said_together(lines: list[Line], condition: str) -> None:
    assert captions(lines) == (Caption(("go",), "client", condition),)


def test_triggers_under_one_condition_share_a_caption() -> None:
    found = captions([line("go", "late"), line("run", "late"), line("walk")])
    assert found == (Caption(("go", "run"), "client", "late"), Caption(("walk",), "client", ""))
