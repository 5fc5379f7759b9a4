"""Tool choice: finds and removes parameters that force a model to call a tool.

A model that must call a tool in every step can never answer. So a forced choice applies until the first tool result of
the turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FREE: Final = (None, "auto", "none")
"""Choices that do not force a call."""
_CHOICES: Final = ("tool_choice", "tool_config", "toolConfig")
"""The names of the parameter in turnwise, and in requests to OpenAI, Anthropic and Google."""
_CONTAINERS: Final = ("provider_options", "extra_body")
"""Parameters with other parameters inside."""


def forced_tool(parameters: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that the model must call; `None` if it need not call one, or may choose."""
    choice = parameters.get("tool_choice")
    return choice if isinstance(choice, str) and choice not in (*FREE, "required") else None


def freed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without a forced choice, also inside of `provider_options` and `extra_body`."""
    kept = {name: value for name, value in parameters.items() if name not in _CHOICES or not _forces(value)}
    for name in _CONTAINERS:
        if isinstance(inner := kept.get(name), Mapping):
            kept[name] = freed(inner)
    return kept


def _forces(choice: Any) -> bool:
    if isinstance(choice, Mapping):
        config = choice.get("functionCallingConfig") or choice.get("function_calling_config") or choice
        words = (config.get("mode"), config.get("type")) if isinstance(config, Mapping) else ()
        mode = next((word for word in words if isinstance(word, str)), None)
        return mode is not None and mode.lower() not in FREE
    return choice not in FREE if isinstance(choice, str | None) else True
