"""Diagnoses: which flaws a repair mends, what is advised, and what is told of many flaws."""

from __future__ import annotations

import pytest

from turnwise.engine.diagnose import advice_on, is_repairable, summary_of
from turnwise.persistence.stored_chat import Flaw

CHAT = Flaw("chats.turn", "is no JSON")
LOG = Flaw("audit.hash", "is not that of its record")


@pytest.mark.parametrize(
    ("flaws", "repairs", "words"),
    [
        ([CHAT], True, (True, False)),
        ([LOG], False, (False, True)),
        ([CHAT, LOG], True, (True, True)),
        ([LOG, CHAT], True, (True, True)),
        ([LOG, LOG], False, (False, True)),
    ],
)
def test_a_log_is_never_repaired_and_everything_else_is(
    flaws: list[Flaw],
    repairs: bool,  # noqa: FBT001
    words: tuple[bool, bool],
) -> None:
    assert is_repairable(flaws) == repairs
    advice = advice_on(flaws)
    assert ("--repair" in advice, "evidence" in advice) == words


def test_flaws_are_told_in_one_line_of_bounded_length() -> None:
    assert summary_of([CHAT, LOG]) == "chats.turn: is no JSON; audit.hash: is not that of its record"
    assert summary_of([]) == ""
    many = summary_of([CHAT] * 500)
    assert len(many) == 2000
    assert many.startswith("chats.turn: is no JSON; chats.turn")
