"""The classes of a model, however it is wrapped: by them its provider's ways are known without the SDK."""

from __future__ import annotations

from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.wrapper import WrapperModel

from turnwise.providers.pydantic_ai.classes import classes_of


class Mine(FunctionModel):
    """A model of a provider's own."""


def test_a_wrapped_model_is_of_the_classes_of_what_it_wraps() -> None:
    model = Mine(lambda _messages, _info: None)  # type: ignore[arg-type, return-value]
    for wrapped in (model, WrapperModel(model), InstrumentedModel(WrapperModel(model))):
        classes = classes_of(wrapped)
        assert classes >= {"Mine", "FunctionModel", "Model"}
        assert not classes & {"WrapperModel", "InstrumentedModel"}
