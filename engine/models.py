"""Models: what an engine is given as its model."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from turnwise.providers.from_name import model_named
from turnwise.providers.protocol import Model


def model_from(model: Model | str) -> Model:
    """Return the model itself, or the one that a string names, see `model_named`.

    Raises:
        SettingsError: the string names no model that can be asked; the text says what would be right.
    """
    return model_named(model) if isinstance(model, str) else model


def lifetime_of(model: Model) -> AbstractAsyncContextManager[object]:
    """Return what opens and closes a model's connections; nothing, for a model that has none."""
    return model if isinstance(model, AbstractAsyncContextManager) else nullcontext()
