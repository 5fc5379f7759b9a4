"""Models by name: what a string like `demo` or `openai:gpt-5` stands for."""

from __future__ import annotations

from turnwise.providers.demo import DemoModel
from turnwise.providers.protocol import Model
from turnwise.states.errors import SettingsError


def model_from(model: Model | str) -> Model:
    """Return the model itself, or the one that a string names.

    Raises:
        SettingsError: the string names no provider that this version knows.
    """
    if not isinstance(model, str):
        return model
    provider, _, name = model.partition(":")
    if provider == "demo":
        return DemoModel(name or "demo")
    raise SettingsError(
        "model", f"{model!r} names no model this version can talk to; pass 'demo', or an object that is a Model"
    )
