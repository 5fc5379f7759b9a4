"""Parameters: the tools on offer and how to sample, in pydantic-ai's words."""

from __future__ import annotations

from typing import Any, Final, cast

from pydantic_ai.messages import InstructionPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.native_tools import AbstractNativeTool
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from turnwise.providers.protocol import PARAMETERS, ModelRequest
from turnwise.states.errors import ModelError

_TOOL_CHOICES: Final = frozenset({"auto", "none", "required"})


def settings_of(request: ModelRequest, configured: ModelSettings) -> ModelSettings:
    """Return the settings of one call: the configured ones, then the request's own.

    The prompt is marked for the provider's cache unless configured otherwise. The SDK never retries: the engine does.

    Raises:
        ModelError: a parameter is unknown.
    """
    given = dict(request.parameters)
    settings: dict[str, Any] = {"cache": True, **configured}
    choice = given.pop("tool_choice", None)
    if choice in _TOOL_CHOICES:
        settings["tool_choice"] = choice if request.tools or choice != "none" else "auto"
    elif choice is not None:
        settings["tool_choice"] = [choice]
    options = given.pop("provider_options", None) or {}
    unknown = given.keys() - set(PARAMETERS)
    if unknown:
        raise ModelError("bad_request", message=f"unknown parameters: {', '.join(sorted(unknown))}")
    given["max_tokens"] = given.pop("max_output_tokens", None)
    settings |= {name: value for name, value in given.items() if value is not None}
    return cast("ModelSettings", {**settings, **options, "max_retries": 0})


def offer_of(request: ModelRequest, native_tools: tuple[AbstractNativeTool, ...]) -> ModelRequestParameters:
    """Return what the call offers: the system prompt, turnwise's tools as they were declared, the provider's own."""
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name, parameters_json_schema=dict(tool.schema), description=tool.description, strict=False
            )
            for tool in request.tools
        ],
        native_tools=list(native_tools),
        instruction_parts=[InstructionPart(request.system)] if request.system else [],
    )
