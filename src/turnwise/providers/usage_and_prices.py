"""Validates the limits and usage that models report, and adds the cost by the price list of `genai-prices`.

An invalid count is unknown. The list comes with the library, and nothing is downloaded.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from decimal import Context, Decimal, localcontext
from importlib.util import find_spec
from typing import Any, Final

from msgspec.structs import replace

from turnwise.logger import logger
from turnwise.providers.protocol import Model, ModelReply
from turnwise.states.usage import FIGURES, Usage
from turnwise.states.values.plain import shown

_MOST_TOKENS: Final = 10**15
_MIN_SUMMARY_TOKENS: Final = 4096
_BUILTIN_PROVIDERS: Final = frozenset({"scripted", "demo", "simulated", "simulated-too"})
"""Providers that the list does not know: the models that turnwise ships."""
_A_THOUSAND: Final = 1000
_COMPATIBLE: Final = "openai-compatible"
"""The provider of models that are known by their address alone."""
_SMALLEST: Final = Decimal("1e-12")
"""Costs are rounded to this many dollars; the cheapest tokens cost thousands of times as much."""
_EXACT: Final = Context(prec=50)
"""The application's own context may round."""


def is_too_small_for_summary(limit: object) -> bool:
    """Whether an output token limit is so low that it could truncate a summary."""
    return isinstance(limit, int | float) and not isinstance(limit, bool) and limit < _MIN_SUMMARY_TOKENS


def valid_token_count(figure: object, what: str) -> int | None:
    """Return a number of tokens that a model reported as `what`: a whole one, not below 0; else `None`."""
    whole = int(figure) if isinstance(figure, float) and figure.is_integer() else figure
    if isinstance(whole, int) and not isinstance(whole, bool) and 0 <= whole <= _MOST_TOKENS:
        return int(whole)
    _report(figure, what)
    return None


def validate_usage(usage: object) -> Usage | None:
    """Return the usage that a model reported; invalid counts become `None`."""
    if not isinstance(usage, Usage):
        _report(usage, "usage")
        return None
    figures: dict[str, Any] = {name: valid_token_count(getattr(usage, name), name) for name in FIGURES}
    figures["compaction"] = None if usage.compaction is None else validate_usage(usage.compaction)
    figures |= {name: bool(getattr(usage, name)) for name in ("partial", "cost_partial")}
    changes = {name: figure for name, figure in figures.items() if figure is not getattr(usage, name)}
    return replace(usage, **changes) if changes else usage


def _report(figure: object, what: str) -> None:
    if figure is not None:
        logger.warning("figure_unknown", figure=what, problem=f"a model reported {shown(figure)}; it counts as unknown")


def context_window(model: Model) -> int | None:
    """Return a model's context window in tokens: what the model says, else what the list of `genai-prices` says."""
    limit = valid_token_count(model.context_limit, "context_limit")
    if limit is not None:
        return limit
    listed = _find_prices(model)
    return None if listed is None else listed[1].context_window


def add_cost(model: Model, usage: Usage | None, at: datetime) -> Usage | None:
    """Return the usage of one call with its cost, by the list price of the time `at`; unchanged if that is unknown.

    Invalid counts become `None`. A cost that the model reports itself stays. If input or output are
    unknown, the cost leaves them out and says so.
    """
    usage = validate_usage(usage)
    if usage is None or usage.cost is not None:
        return usage
    unknown = (usage.input_tokens, usage.output_tokens).count(None)
    cost = _cost(model, usage, at) if unknown < 2 else None  # noqa: PLR2004 - neither is known
    return usage if cost is None else replace(usage, cost=cost, cost_partial=unknown > 0)


def token_prices(model: Model, at: datetime) -> tuple[Decimal, Decimal] | None:
    """Return what a token of a prompt and one of a reply cost, by the list price of the time; `None` if unknown."""
    prompt = _cost(model, Usage(input_tokens=_A_THOUSAND, output_tokens=0), at)
    reply = _cost(model, Usage(input_tokens=0, output_tokens=_A_THOUSAND), at)
    return None if prompt is None or reply is None else (prompt / _A_THOUSAND, reply / _A_THOUSAND)


def add_reply_cost(model: Model, reply: ModelReply, at: datetime) -> ModelReply:
    """Return the reply with its cost."""
    usage = add_cost(model, reply.usage, at)
    return reply if usage is reply.usage else replace(reply, finish=replace(reply.finish, usage=usage))


def load_prices(model: Model) -> None:
    """Load the list, if it may have the model's price: it takes half a second, once in a process."""
    with suppress(Exception):  # without a price every call is made just the same
        _find_prices(model)


def _find_prices(model: Model) -> tuple[Any, Any] | None:
    """Return the provider and the model of the list; `None` if the list has no such model."""
    if model.provider in _BUILTIN_PROVIDERS or find_spec("genai_prices") is None:
        return None
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - the list takes long to load

    by_address = model.provider == _COMPATIBLE
    provider = None if by_address else model.provider
    address = getattr(model, "address", None) or "unknown" if by_address else None
    try:
        return get_snapshot().find_provider_model(model.name, None, provider, address)
    except LookupError:
        return None


def _cost(model: Model, usage: Usage, at: datetime) -> Decimal | None:
    try:
        listed = _find_prices(model)
        if listed is None:
            return None
        from genai_prices import Usage as Counted  # noqa: PLC0415 - as above

        provider, priced_model = listed
        counted = Counted(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        with localcontext(_EXACT):
            return _round_cost(priced_model.calc_price(counted, provider, genai_request_timestamp=at).total_price)
    except Exception as problem:  # noqa: BLE001 - figures that contradict each other, or a list of another form
        logger.debug("price_not_computed", provider=model.provider, model=model.name, problem=str(problem))
        return None


def _round_cost(price: Decimal) -> Decimal:
    """Return a price rounded to `_SMALLEST`, without trailing zeros."""
    rounded = price.quantize(_SMALLEST).normalize()
    return rounded.quantize(Decimal(1)) if rounded == rounded.to_integral_value() else rounded
