"""Figures that models report: whole numbers are taken, whatever else a figure is makes it an unknown one."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from turnwise import Usage
from turnwise.providers.figures import tokens, usage_of

COUNTED = Usage(input_tokens=10, output_tokens=1, cost=Decimal("0.25"))


@pytest.mark.parametrize(
    ("figure", "number"),
    [
        (0, 0),
        (128_000, 128_000),
        (128e3, 128_000),
        (None, None),
        (True, None),
        (1000 / 3, None),
        (float("nan"), None),
        (-5, None),
        (10**400, None),
        ("9", None),
    ],
    ids=lambda value: f"{value!a:.12}",
)
def test_token_count_is_an_integer_or_unknown_and_logged(
    figure: Any, number: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        taken = tokens(figure, "context_limit")
    assert taken == number
    assert type(taken) is type(number)
    assert bool(caplog.records) == (number is None and figure is not None)


@pytest.mark.parametrize(
    ("changes", "mended"),
    [
        ({"input_tokens": 10.0}, {"input_tokens": 10}),
        ({"input_tokens": 2.5}, {"input_tokens": None}),
        ({"output_tokens": True}, {"output_tokens": None}),
        ({"reasoning_tokens": -5}, {"reasoning_tokens": None}),
        ({"cache_read_tokens": 10**400, "partial": 1}, {"cache_read_tokens": None, "partial": True}),
        ({"compaction": 5}, {"compaction": None}),
        ({"compaction": replace(COUNTED, input_tokens=-1)}, {"compaction": replace(COUNTED, input_tokens=None)}),
    ],
)
def test_invalid_usage_field_is_unknown_and_others_count(changes: Any, mended: Any) -> None:
    usage = usage_of(replace(COUNTED, **changes))
    assert usage == replace(COUNTED, **mended)
    assert [type(getattr(usage, name)) for name in mended] == [type(figure) for figure in mended.values()]
