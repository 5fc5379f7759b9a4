"""An agent's answer in a form, as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from pydantic_core import to_json

from turnwise.engine.agents.answer_format import format_of
from turnwise.engine.config.results import TurnResult
from turnwise.engine.subscriptions.turns import answer_in

_ANY_FORM: Final = format_of("any", {"type": "object"})


def with_json(result: TurnResult[Any]) -> TurnResult[Any]:
    """Return the result with its answer as JSON: as the model gave it, if JSON does not know the value made of it."""
    try:
        output = json.loads(to_json(result.output))
    except ValueError:
        output = answer_in(result.messages, lambda _agent: _ANY_FORM, result.chat.agent, result.stop_reason)
    return replace(result, output=output)
