"""Answer schemas: which models keep an answer to a JSON schema by themselves."""

from __future__ import annotations

from typing import Literal

from turnwise.providers.protocol import Model

TakesAnswerSchema = Literal["always", "without_tools"]
"""When a model keeps its answer to `ModelRequest.answer_schema`: always, or only where it is offered no tools."""


def takes_answer_schema(model: Model, *, beside_tools: bool) -> bool:
    """Return whether a model keeps its answer to a schema, as it says in `takes_answer_schema`; many say nothing."""
    says = getattr(model, "takes_answer_schema", None)
    return says == "always" or (says == "without_tools" and not beside_tools)
