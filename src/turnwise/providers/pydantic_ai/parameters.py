"""Parameters: the tools on offer and how to sample, in pydantic-ai's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic_ai.messages import InstructionPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from turnwise.providers.parameters import NAMES_IN_PYDANTIC_AI, PARAMETERS, without_forced_choice
from turnwise.providers.protocol import ModelRequest, TakesAnswerSchema
from turnwise.providers.usage_and_prices import is_too_small_for_summary
from turnwise.states.model_errors import ModelError

_TOOL_CHOICES: Final = frozenset({"auto", "none", "required"})
_CHAINING: Final = frozenset({"openai_previous_response_id", "openai_conversation_id"})
"""Settings by which a provider goes on from what it has stored itself."""


def settings_of(request: ModelRequest, configured: ModelSettings, preset: ModelSettings | None = None) -> ModelSettings:
    """Return the settings of one call: the configured ones, then the request's own.

    They replace `preset`, the settings of pydantic-ai's model. The prompt is marked for the provider's cache unless
    configured otherwise. The SDK never retries: the engine does. Only the first step of a turn continues the provider's
    stored conversation: later steps send the calls and results, which the provider would have twice. Summaries and
    titles ignore low limits of output, which are meant for answers.
    """
    parameters = dict(request.parameters)
    is_free = request.has_results or request.purpose != "step"
    settings: dict[str, Any] = {"cache": True, **(without_forced_choice(configured) if is_free else configured)}
    choice = parameters.pop("tool_choice", None)
    if choice in _TOOL_CHOICES:
        settings["tool_choice"] = choice if request.tools or choice != "none" else "auto"
    elif choice is not None:
        settings["tool_choice"] = [choice]
    parameters.pop("web_search", None)  # it is a native tool
    options = parameters.pop("provider_options", None) or {}
    unknown = parameters.keys() - set(PARAMETERS)
    if unknown:
        raise ModelError("bad_request", message=f"unknown parameters: {', '.join(sorted(unknown))}")
    settings |= {NAMES_IN_PYDANTIC_AI.get(name, name): value for name, value in parameters.items() if value is not None}
    settings = {**settings, **options, "max_retries": 0}
    most = settings.get("max_tokens", (preset or {}).get("max_tokens"))
    if request.purpose != "step" and is_too_small_for_summary(most):
        settings["max_tokens"] = None
    if is_free:
        before: dict[str, Any] = {**(preset or {})}
        loosened = without_forced_choice(before)
        settings = {**{name: loosened.get(name) for name in before if loosened.get(name) != before[name]}, **settings}
    if not _begins_turn(request):
        settings |= dict.fromkeys(_CHAINING & {*settings, *(preset or ())})
    return cast("ModelSettings", settings)


def _begins_turn(request: ModelRequest) -> bool:
    """Whether the call is the first step of a turn."""
    messages = [message for message in request.messages if not message.synthetic]
    return request.purpose == "step" and bool(messages) and messages[-1].role == "user"


def known_to_take_schema(model: Model, native_tools: Sequence[AbstractNativeTool]) -> TakesAnswerSchema | None:
    """Return when a provider keeps answers to a schema; Google's older models do so only without any tools."""
    is_anyones = model.system == "openai-compatible"
    if is_anyones or not model.profile.get("supports_json_schema_output", False):
        return None
    if model.system.startswith("google") and not model.profile.get("google_supports_tool_combination", False):
        return None if native_tools else "without_tools"
    return "always"


def searches_web(model: Model) -> bool:
    """Whether the provider can search the web for a model."""
    return WebSearchTool in model.profile.get("supported_native_tools", type(model).supported_native_tools())


def with_web_search(
    native_tools: Sequence[AbstractNativeTool],
    wanted: bool | Mapping[str, Any] | None,  # noqa: FBT001 - a parameter of a model call
) -> tuple[AbstractNativeTool, ...]:
    """Return the model's native tools, with the parameter `web_search` applied.

    `True` adds web search with default options if the model has none; options replace the model's; `False` removes web
    search; `None` changes nothing.
    """
    others = tuple(one for one in native_tools if not isinstance(one, WebSearchTool))
    if wanted is None or (wanted is True and len(others) < len(native_tools)):
        return tuple(native_tools)
    if wanted is False:
        return others
    options = {} if wanted is True else {name: value for name, value in wanted.items() if value is not None}
    return (*others, WebSearchTool(**options))


def offer_of(request: ModelRequest, native_tools: tuple[AbstractNativeTool, ...]) -> ModelRequestParameters:
    """Build the parameters of a call: the system prompt, the tools of turnwise and the native tools of the provider."""
    schema = request.answer_schema
    description = None if schema is None else schema.get("description")
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name, parameters_json_schema=dict(tool.schema), description=tool.description, strict=False
            )
            for tool in request.tools
        ],
        native_tools=list(with_web_search(native_tools, request.parameters.get("web_search"))),
        instruction_parts=[InstructionPart(request.system)] if request.system else [],
        output_mode="text" if schema is None else "native",
        output_object=None if schema is None else OutputObjectDefinition(dict(schema), "final_answer", description),
    )
