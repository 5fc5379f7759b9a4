"""Definitions: tools that Anthropic knows itself, sent by the one way that pydantic-ai leaves open.

pydantic-ai has no tool in a provider's own words: `ToolDefinition` is always written with description and schema, and
native tools are those that it knows. But the `tools` of `extra_body` replace on the wire those that it wrote. So a
request with a definition has all of its tools written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic_ai.models import Model
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool
from pydantic_ai.settings import ModelSettings

from turnwise.providers.protocol import ToolSpec
from turnwise.providers.pydantic_ai.cache import tools_cached_for
from turnwise.providers.pydantic_ai.classes import classes_of
from turnwise.providers.pydantic_ai.web_search import written_for_anthropic


def sends_definitions(model: Model) -> bool:
    """Return whether a model of pydantic-ai speaks Anthropic's Messages."""
    return "AnthropicModel" in classes_of(model)


def with_definitions(
    settings: ModelSettings,
    tools: Sequence[ToolSpec],
    configured: ModelSettings | None,
    native_tools: Sequence[AbstractNativeTool] = (),
) -> ModelSettings:
    """Return the settings of a call that is offered these tools; as they are, if none of them has a definition.

    Tools that are left out by `tool_choice` are not offered, and the last one is marked for the cache, as pydantic-ai
    does it.

    Args:
        settings: of the call.
        tools: all that are offered.
        configured: the model's own settings, which those of the call replace.
        native_tools: of the call; only web search may stand beside a definition.
    """
    definitions = [tool.definition for tool in tools if tool.definition is not None]
    if not definitions:
        return settings
    merged: dict[str, Any] = {**(configured or {}), **settings}
    choice = merged.get("tool_choice")
    offered = [_written(tool, merged) for tool in tools if not isinstance(choice, list) or tool.name in choice]
    offered += [written_for_anthropic(one) for one in native_tools if isinstance(one, WebSearchTool)]
    if offered and (lasts := tools_cached_for(merged)) is not None:
        offered[-1].setdefault("cache_control", {"type": "ephemeral", "ttl": lasts})
    betas = [*merged.get("anthropic_betas", ()), *(beta for definition in definitions for beta in definition.betas)]
    added = {"extra_body": {"tools": offered, **(merged.get("extra_body") or {})}, "anthropic_betas": betas}
    return cast("ModelSettings", {**settings, **added})


def _written(tool: ToolSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    if tool.definition is not None:
        return dict(tool.definition.tool)
    written = {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
    return written | ({"eager_input_streaming": True} if settings.get("anthropic_eager_input_streaming") else {})
