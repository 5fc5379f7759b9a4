"""The cost of a call: by the library's price list, without a network, or unknown."""

import logging
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from turnwise import Usage
from turnwise.providers import usage_and_prices
from turnwise.providers.demo import DemoModel
from turnwise.providers.scripted import ScriptedModel
from turnwise.providers.usage_and_prices import add_cost, context_window, load_prices, valid_token_count, validate_usage

NOW = datetime(2026, 11, 1, tzinfo=UTC)
COUNTED = Usage(input_tokens=1000, output_tokens=500)


def named(name: str = "claude-sonnet-4-5", provider: str = "anthropic") -> ScriptedModel:
    return ScriptedModel("x", name=name, provider=provider)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (COUNTED, "0.0105"),
        (Usage(input_tokens=1000, output_tokens=500, cache_read_tokens=400, cache_write_tokens=300), "0.009645"),
        (Usage(input_tokens=1000, output_tokens=500, reasoning_tokens=499), "0.0105"),
        (Usage(input_tokens=300_000, output_tokens=1), "1.8000225"),  # a longer prompt is dearer
        (Usage(input_tokens=0, output_tokens=0), "0"),
    ],
)
def test_cost_follows_the_price_list(usage: Usage, cost: str) -> None:
    found = add_cost(named(), usage, NOW)
    assert (str(found.cost), found.cost_partial) == (cost, False)


@pytest.mark.parametrize(
    "usage", [None, Usage(), Usage(cache_read_tokens=4), Usage(input_tokens=1, output_tokens=1, cache_read_tokens=5)]
)
def test_missing_or_contradictory_counts_have_no_cost(usage: Usage | None) -> None:
    assert add_cost(named(), usage, NOW) is usage


@pytest.mark.parametrize(
    "model",
    [
        named("no-such-model"),
        named(provider="nobody"),
        named("gpt-5", "openai-compatible"),  # who runs it is not known
        named("qwen3", "ollama"),
        ScriptedModel("x", name="gpt-5"),
        DemoModel("gpt-5"),
    ],
)
def test_unlisted_model_has_no_price(model: Any) -> None:
    assert add_cost(model, COUNTED, NOW) is COUNTED
    load_prices(model)


def test_compatible_service_is_priced_by_its_url() -> None:
    model: Any = named("deepseek-chat", "openai-compatible")
    model.address = "https://api.deepseek.com/v1/"
    found = add_cost(model, COUNTED, NOW)
    assert found.cost is not None
    assert context_window(model) is not None
    model.address = "http://localhost:8000/v1"
    assert add_cost(model, COUNTED, NOW) is COUNTED


def test_periodic_cost_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may give the price of a thousand tokens, or of three: each message has its cost."""
    price = SimpleNamespace(calc_price=lambda *_, **__: SimpleNamespace(total_price=Decimal(1) / 3))
    monkeypatch.setattr(usage_and_prices, "_find_prices", lambda _model: (None, price))
    found = add_cost(named(), COUNTED, NOW)
    assert str(found.cost) == "0.333333333333"


ALONE = """
import sys
sys.addaudithook(lambda name, _: name.startswith("socket.") and exit(name))
import turnwise
from datetime import UTC, datetime
from turnwise.providers.usage_and_prices import add_cost
from turnwise.providers.scripted import ScriptedModel
assert not [name for name in sys.modules if name.startswith("genai_prices")]
usage = turnwise.Usage(input_tokens=1000, output_tokens=500)
print(add_cost(ScriptedModel("x", name="gpt-5", provider="openai"), usage, datetime.now(UTC)).cost)
"""


def test_price_list_loads_lazily_and_without_network() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "0.00625")


# How much a model takes in


TABLE = "genai_prices.data_snapshot"


def knows(**fields: Any) -> ScriptedModel:
    return ScriptedModel("x", **{"name": "gpt-5", "provider": "openai"} | fields)


def windowed(context_limit: Any) -> ScriptedModel:
    model = knows()
    model.context_limit = context_limit
    return model


def test_table_gives_the_window_of_known_models() -> None:
    assert context_window(knows()) == 400_000
    assert context_window(knows(name="no-such-model")) is None


@pytest.mark.parametrize(
    ("model", "window"),
    [
        (knows(context_limit=7), 7),
        (windowed(7e3), 7000),
        (DemoModel("gpt-5", context_limit=None), None),
        (ScriptedModel("x", name="gpt-5"), None),
    ],
)
def test_table_is_loaded_only_if_it_may_help(model: Any, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, TABLE, raising=False)
    assert context_window(model) == window
    assert TABLE not in sys.modules


# Figures that models report


REPORTED = Usage(input_tokens=10, output_tokens=1, cost=Decimal("0.25"))


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
        taken = valid_token_count(figure, "context_limit")
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
        ({"compaction": replace(REPORTED, input_tokens=-1)}, {"compaction": replace(REPORTED, input_tokens=None)}),
    ],
)
def test_invalid_usage_field_is_unknown_and_others_count(changes: Any, mended: Any) -> None:
    usage = validate_usage(replace(REPORTED, **changes))
    assert usage == replace(REPORTED, **mended)
    assert [type(getattr(usage, name)) for name in mended] == [type(figure) for figure in mended.values()]
