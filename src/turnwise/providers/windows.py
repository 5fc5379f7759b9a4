"""Context windows of models, where neither the provider nor the settings state them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from turnwise.providers.figures import tokens
from turnwise.providers.protocol import Model

OURS: Final = frozenset({"scripted", "demo", "simulated"})
"""Providers that no table knows: the models that turnwise ships."""


def window_of(model: Model) -> int | None:
    """Return a model's context window in tokens: what the model says, else what the table of `genai-prices` says.

    `None` if neither knows it. The table is loaded when it is first asked for; it comes with the `models` extra.
    """
    limit = tokens(model.context_limit, "context_limit")
    if limit is not None or model.provider in OURS or find_spec("genai_prices") is None:
        return limit
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - the table takes long to load

    try:
        _, listed = get_snapshot().find_provider_model(model.name, None, model.provider, None)
    except LookupError:
        return None
    return listed.context_window
