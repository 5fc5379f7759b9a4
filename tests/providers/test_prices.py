"""What a call costs: by the list that comes with the library, without a network, and unknown where nobody knows."""

from __future__ import annotations

import logging
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.exploring import examples
from turnwise import Usage
from turnwise.providers import prices
from turnwise.providers.demo import DemoModel
from turnwise.providers.prices import load_prices, priced, priced_reply
from turnwise.providers.protocol import ModelPart, ModelReply
from turnwise.providers.scripted import ScriptedModel

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LIST = "genai_prices.data_snapshot"
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
def test_a_call_costs_what_the_list_says(usage: Usage, cost: str) -> None:
    found = priced(named(), usage, NOW)
    assert found is not None
    assert (str(found.cost), found.cost_partial) == (cost, False)


@pytest.mark.parametrize(("usage", "cost"), [(Usage(input_tokens=1000), "0.003"), (Usage(output_tokens=1), "0.000015")])
def test_the_cost_of_half_a_count_is_partial(usage: Usage, cost: str) -> None:
    found = priced(named(), usage, NOW)
    assert found is not None
    assert (str(found.cost), found.cost_partial) == (cost, True)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        Usage(),
        Usage(cache_read_tokens=4),
        Usage(input_tokens=1, output_tokens=1, cache_read_tokens=5),
    ],
)
def test_counts_that_say_nothing_or_contradict_each_other_have_no_cost(usage: Usage | None) -> None:
    assert priced(named(), usage, NOW) is usage


def test_why_a_price_is_unknown_is_logged_for_who_looks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "turnwise")
    priced(named(), Usage(input_tokens=1, output_tokens=1, cache_read_tokens=5), NOW)
    (line,) = caplog.messages
    assert line.startswith("price_not_computed provider=anthropic model=claude-sonnet-4-5 problem=")
    assert len(line.partition("problem=")[2]) > 10


def test_a_cost_that_the_model_reports_itself_stays() -> None:
    own = Usage(input_tokens=1000, output_tokens=500, cost=Decimal(7))
    assert priced(named(), own, NOW) is own


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
def test_a_model_that_the_list_does_not_know_has_no_price(model: Any) -> None:
    assert priced(model, COUNTED, NOW) is COUNTED
    load_prices(model)


def test_a_compatible_service_is_known_by_its_address() -> None:
    model: Any = named("deepseek-chat", "openai-compatible")
    model.address = "https://api.deepseek.com/v1/"
    found = priced(model, COUNTED, NOW)
    assert found is not None
    assert found.cost is not None
    model.address = "http://localhost:8000/v1"
    assert priced(model, COUNTED, NOW) is COUNTED


def test_a_reply_is_priced_with_all_that_it_says() -> None:
    reply = ModelReply((), ModelPart("finish", usage=COUNTED, metadata={"reason": "stop"}))
    found = priced_reply(named(), reply, NOW)
    assert found.usage is not None
    assert (found.usage.cost, found.finish.metadata) == (Decimal("0.0105"), {"reason": "stop"})
    assert priced_reply(DemoModel(), reply, NOW) is reply


def test_a_price_that_has_no_end_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list may tell the price of a thousand tokens, or of three: a cost is kept, and sent, with each message."""
    price = SimpleNamespace(calc_price=lambda *_, **__: SimpleNamespace(total_price=Decimal(1) / 3))
    monkeypatch.setattr(prices, "_listed", lambda _model: (None, price))
    found = priced(named(), COUNTED, NOW)
    assert found is not None
    assert str(found.cost) == "0.333333333333"


def test_a_price_does_not_depend_on_what_the_application_rounds_to() -> None:
    with localcontext() as context:
        context.prec = 2
        found = priced(named(), Usage(input_tokens=123_456, output_tokens=789), NOW)
    assert found is not None
    assert found.cost == Decimal("0.382203")


@given(st.integers(0, 10**9), st.integers(0, 10**9))
@settings(max_examples=examples(30))
def test_a_price_is_a_plain_number(asked: int, answered: int) -> None:
    found = priced(named("gpt-5", "openai"), Usage(input_tokens=asked, output_tokens=answered), NOW)
    assert found is not None
    assert found.cost is not None
    assert "E" not in str(found.cost)
    assert found.cost.is_finite()


@pytest.mark.parametrize("model", [DemoModel(), ScriptedModel("x")])
def test_the_list_is_not_read_where_it_can_say_nothing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, LIST, raising=False)
    assert priced(model, COUNTED, NOW) is COUNTED
    assert LIST not in sys.modules


def test_without_the_list_a_price_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "find_spec", lambda _name: None)
    assert priced(named(), COUNTED, NOW) is COUNTED


ALONE = """
import sys
sys.addaudithook(lambda name, _: name.startswith("socket.") and exit(name))
import turnwise
from datetime import UTC, datetime
from turnwise.providers.prices import priced
from turnwise.providers.scripted import ScriptedModel
assert not [name for name in sys.modules if name.startswith("genai_prices")]
usage = turnwise.Usage(input_tokens=1000, output_tokens=500)
print(priced(ScriptedModel("x", name="gpt-5", provider="openai"), usage, datetime.now(UTC)).cost)
"""


def test_the_list_is_read_when_it_is_first_needed_and_no_network_is() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "0.00625")


LOADING = """
import sys
from turnwise.providers.prices import load_prices
class Known:
    provider, name = sys.argv[1:]
load_prices(Known())
print("genai_prices.data_snapshot" in sys.modules)
"""


@pytest.mark.parametrize(("provider", "loaded"), [("openai", "True"), ("demo", "False")])
def test_the_list_is_loaded_before_the_first_call_if_it_may_know_the_model(provider: str, loaded: str) -> None:
    command = [sys.executable, "-c", LOADING, provider, "gpt-5"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == loaded


def test_a_count_that_cannot_be_booked_is_none_and_the_cost_leaves_it_out() -> None:
    usage = priced(named(), Usage(input_tokens=-1, output_tokens=1), NOW)
    assert usage == Usage(output_tokens=1, cost=Decimal("0.000015"), cost_partial=True)
