"""Tool choice: what forces a model to call a tool, and how a request is freed of it.

A model that has to call a tool with every step can never give its answer. So a forced choice counts until the turn has
its first tool result, wherever it was set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FREE: Final = (None, "auto", "none")
"""Choices that force no call."""
_CHOICES: Final = ("tool_choice", "tool_config", "toolConfig")
"""Where a choice stands in the parameters of a call, and in the bodies of OpenAI, Anthropic and Google."""
_AROUND: Final = ("provider_options", "extra_body")
"""Parameters that hold others."""


def forced_tool(parameters: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that the parameters force; `None` if they force none, or any."""
    choice = parameters.get("tool_choice")
    return choice if isinstance(choice, str) and choice not in (*FREE, "required") else None


def freed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without what forces a call, at the top or in what is passed on to the provider."""
    kept = {name: value for name, value in parameters.items() if name not in _CHOICES or not _forces(value)}
    for name in _AROUND:
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
