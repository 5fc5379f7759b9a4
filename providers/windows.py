"""Context windows of models, where neither the provider nor the settings state them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from turnwise.providers.protocol import Model

_OURS: Final = frozenset({"scripted", "demo"})
"""Providers that no table knows: the models that turnwise ships."""


def window_of(model: Model) -> int | None:
    """Return a model's context window in tokens: as the model says, else as a table knows it; `None` if unknown."""
    return model.context_limit if model.context_limit is not None else known_window(model.provider, model.name)


def known_window(provider: str, name: str) -> int | None:
    """Return a model's context window in tokens, from the table of `genai-prices`; `None` if that does not know it.

    The table is loaded when it is first asked for; without the `models` extra nothing is known.
    """
    if provider in _OURS or find_spec("genai_prices") is None:
        return None
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - the table takes long to load

    try:
        _, model = get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return None
    return model.context_window
