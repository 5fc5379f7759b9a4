"""Prices of model calls, by the list of `genai-prices`: what comes with it is used, and nothing is downloaded."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from decimal import Context, Decimal, localcontext
from importlib.util import find_spec
from typing import Any, Final

from msgspec.structs import replace

from turnwise.logger import logger
from turnwise.providers.figures import OURS, usage_of
from turnwise.providers.protocol import Model, ModelReply
from turnwise.states.usage import Usage

COMPATIBLE: Final = "openai-compatible"
"""The provider of models that are known by their address alone."""
_SMALLEST: Final = Decimal("1e-12")
"""Costs are rounded to this many dollars; the cheapest tokens cost thousands of times as much."""
_EXACT: Final = Context(prec=50)
"""For reckoning, whatever the application's own context rounds to."""


def priced(model: Model, usage: Usage | None, at: datetime) -> Usage | None:
    """Return the usage of one call with its cost, by the list price of the time `at`; unchanged if that is unknown.

    A figure that cannot be booked is unknown. A cost that the model reports itself stays. If input or output are
    unknown, the cost leaves them out and says so.
    """
    usage = usage_of(usage)
    if usage is None or usage.cost is not None:
        return usage
    unknown = (usage.input_tokens, usage.output_tokens).count(None)
    cost = _cost(model, usage, at) if unknown < 2 else None  # noqa: PLR2004 - neither is known
    return usage if cost is None else replace(usage, cost=cost, cost_partial=unknown > 0)


def priced_reply(model: Model, reply: ModelReply, at: datetime) -> ModelReply:
    """Return the reply with what it costs."""
    usage = priced(model, reply.usage, at)
    return reply if usage is reply.usage else replace(reply, finish=replace(reply.finish, usage=usage))


def load_prices(model: Model) -> None:
    """Load the list, if it may have the model's price: it takes half a second, once in a process."""
    with suppress(Exception):  # without a price every call is made just the same
        _listed(model)


def _listed(model: Model) -> tuple[Any, Any] | None:
    """Return the provider and the model of the list; `None` if the list has no such model."""
    if model.provider in OURS or find_spec("genai_prices") is None:
        return None
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - the list takes long to load

    by_address = model.provider == COMPATIBLE
    provider = None if by_address else model.provider
    address = getattr(model, "address", None) or "unknown" if by_address else None
    try:
        return get_snapshot().find_provider_model(model.name, None, provider, address)
    except LookupError:
        return None


def _cost(model: Model, usage: Usage, at: datetime) -> Decimal | None:
    try:
        listed = _listed(model)
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
            return _plain(priced_model.calc_price(counted, provider, genai_request_timestamp=at).total_price)
    except Exception as problem:  # noqa: BLE001 - figures that contradict each other, or a list of another form
        logger.debug("price_not_computed", provider=model.provider, model=model.name, problem=str(problem))
        return None


def _plain(price: Decimal) -> Decimal:
    """Return a price without the digits that mean nothing."""
    rounded = price.quantize(_SMALLEST).normalize()
    return rounded.quantize(Decimal(1)) if rounded == rounded.to_integral_value() else rounded
