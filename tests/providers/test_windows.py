"""How much a model takes in: what it says itself counts, then what the table says, which is not read in vain."""

from __future__ import annotations

import sys
from typing import Any

import pytest

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


def test_table_gives_the_window_of_known_models() -> None:
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
def test_table_is_loaded_only_if_it_may_help(model: Any, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, TABLE, raising=False)
    assert window_of(model) == window
    assert TABLE not in sys.modules
