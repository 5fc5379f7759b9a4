"""Spending: what was used, and whether all of it is known."""

from __future__ import annotations

from turnwise import Usage
from turnwise.engine.spending import Spending


def test_spending_adds_up_and_may_be_partial() -> None:
    spending = Spending()
    assert spending.usage is None
    spending.add(Usage(input_tokens=2))
    assert spending.usage == Usage(input_tokens=2)
    spending.add(Usage(input_tokens=3, output_tokens=1))
    assert spending.usage == Usage(input_tokens=5, output_tokens=1)
    spending.add(None)
    assert spending.usage == Usage(input_tokens=5, output_tokens=1, partial=True)
