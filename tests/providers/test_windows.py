"""How much a model takes in: what it says itself counts, then what the table says, which is not read in vain."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from turnwise.providers import windows
from turnwise.providers.demo import DemoModel
from turnwise.providers.scripted import ScriptedModel
from turnwise.providers.windows import window_of

TABLE = "genai_prices.data_snapshot"


def named(**fields: Any) -> ScriptedModel:
    return ScriptedModel("x", **{"name": "gpt-5", "provider": "openai"} | fields)


def windowed(context_limit: Any) -> ScriptedModel:
    model = named()
    model.context_limit = context_limit
    return model


@pytest.mark.parametrize("wrong", ["9", 1000 / 3, True, -1])
def test_a_window_that_is_no_number_of_tokens_is_looked_up(wrong: Any) -> None:
    assert window_of(windowed(wrong)) == 400_000


def test_the_table_tells_of_models_that_say_nothing_themselves() -> None:
    assert window_of(named()) == 400_000
    assert window_of(named(name="no-such-model")) is None


@pytest.mark.parametrize(
    ("model", "window"),
    [
        (named(context_limit=7), 7),
        (windowed(7e3), 7000),
        (DemoModel("gpt-5", context_limit=None), None),
        (ScriptedModel("x", name="gpt-5"), None),
    ],
)
def test_the_table_is_not_read_where_it_can_say_nothing(
    model: Any, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, TABLE, raising=False)
    assert window_of(model) == window
    assert TABLE not in sys.modules


def test_without_the_table_a_window_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "find_spec", lambda _name: None)
    assert window_of(named()) is None
