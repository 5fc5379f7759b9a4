"""Budgets as values: reservations, settlements, and calls that the rest does not cover."""

from __future__ import annotations

from decimal import Decimal as D  # noqa: N817 - a table of them
from typing import Any

import pytest

from turnwise.states.budgets import Amount, CallEstimator, Funds, Reservation, StoredBudget
from turnwise.states.usage import Usage
from turnwise.states.writes import RecordUsage, Reserve

PRICED = CallEstimator(max_output_tokens=40, input_price=D("0.01"), output_price=D("0.02"))
OPEN = {"c": Reservation(100, D("0.5")), "d": Reservation(7, None)}


@pytest.mark.parametrize(
    ("chat", "purpose", "usage", "spent", "unpriced", "left"),
    [
        ("c", "reply", Usage(input_tokens=20, output_tokens=5, cost=D("0.1")), Amount(25, D("0.1")), 0, "d"),
        ("c", "reply", Usage(input_tokens=20), Amount(20), 1, "d"),
        ("c", "reply", Usage(partial=True), Amount(100, D("0.5")), 0, "d"),
        ("c", "reply", Usage(partial=True, output_tokens=151, cost=D("0.7")), Amount(151, D("0.7")), 0, "d"),
        ("d", "reply", Usage(partial=True), Amount(7), 1, "c"),
        ("c", "reply", Usage(), Amount(), 0, "d"),
        ("e", "reply", Usage(partial=True), Amount(), 1, "cd"),
        ("c", "title", Usage(input_tokens=3, cost=D("0.1")), Amount(3, D("0.1")), 0, "cd"),
        ("c", "title", Usage(partial=True), Amount(), 1, "cd"),
    ],
)
def test_call_counts_as_used_or_as_reserved(
    chat: str, purpose: Any, usage: Usage, spent: Amount, unpriced: int, left: str
) -> None:
    """A call without a report counts its reservation, or nothing if it has none; a title reserves nothing."""
    written = RecordUsage(purpose, 1, 1, 1, usage)
    (budget,) = Funds((StoredBudget(owner="ada", reservations=OPEN),)).after(chat, [written]).budgets
    assert (budget.spent, budget.unpriced, {*budget.reservations}) == (spent, unpriced, {*left})


@pytest.mark.parametrize(
    ("limits", "other", "most", "reserved"),
    [
        ({}, Reservation(20, D("0.2")), Reservation(30, D("0.3")), Reservation(30, D("0.3"))),
        ({}, Reservation(20, D("0.2")), Reservation(90, D("0.9")), Reservation(70, D("0.7"))),
        ({}, Reservation(20, D("0.2")), Reservation(90, None), Reservation(70, None)),
        ({}, Reservation(20, None), Reservation(90, D("0.9")), Reservation(70, D(0))),
        ({}, Reservation(200, D(2)), Reservation(90, D("0.9")), Reservation(0, D(0))),
        ({"tokens": None, "cost": None}, Reservation(20, None), Reservation(90, D(9)), Reservation(90, D(9))),
    ],
)
def test_call_reserves_no_more_than_is_left(
    limits: dict[str, Any], other: Reservation, most: Reservation, reserved: Reservation
) -> None:
    budget = StoredBudget(
        **{"tokens": 100, "cost": D(1), **limits}, owner="ada", spent=Amount(10, D("0.1")), reservations={"d": other}
    )
    (after,) = Funds((budget,)).after("c", [Reserve(1, 1, most.tokens, most.cost)]).budgets
    assert after.reservations == {"c": reserved, "d": other}


@pytest.mark.parametrize(
    ("estimator", "spent", "reason"),
    [
        (CallEstimator(), Amount(39), None),
        (CallEstimator(), Amount(40), "token_budget"),
        (CallEstimator(max_output_tokens=40), Amount(0), None),
        (CallEstimator(max_output_tokens=40), Amount(1), "token_budget"),
        (CallEstimator(), Amount(0, D("0.99")), None),
        (CallEstimator(), Amount(0, D(1)), "cost_budget"),
        (PRICED, Amount(0, D("-0.4")), None),
        (PRICED, Amount(0, D("-0.39")), "cost_budget"),
    ],
)
def test_call_needs_its_prompt_and_its_reply(estimator: CallEstimator, spent: Amount, reason: str | None) -> None:
    """A reply without a bound needs one token; a call of unknown price needs some money left."""
    budget = StoredBudget(owner="ada", tokens=100, cost=D(1), spent=spent)
    plenty = StoredBudget(chat_id="c", tokens=10**6)
    for funds in (Funds((budget, plenty), estimator), Funds((plenty, budget), estimator)):
        found = funds.shortage(60)
        assert found == funds.spent(60) == (None if reason is None else (budget, reason))


def test_open_calls_leave_less_than_is_spent() -> None:
    """A call of unknown price reserves all that is left, at least as much as the other calls after a lower limit."""
    held = StoredBudget(owner="ada", tokens=100, cost=D("0.2"), spent=Amount(0, D("0.1")), reservations=OPEN)
    assert held.reserved == Amount(107, D("0.5"))
    funds = Funds((held,))
    assert (funds.shortage(1), funds.spent(1)) == ((held, "token_budget"), None)
    assert CallEstimator(input_price=D(1)).most(4) == Reservation(4100, None)
    assert PRICED.most(60) == Reservation(100, D("1.4"))
