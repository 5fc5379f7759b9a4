"""The classes of a model of pydantic-ai, by name: the SDK of a provider may not be installed."""

from __future__ import annotations

from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel


def classes_of(model: Model) -> frozenset[str]:
    """Return the names of a model's classes; of one that wraps another, those of the other."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return frozenset(base.__name__ for base in type(model).__mro__)
