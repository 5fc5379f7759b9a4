"""Definitions: tools that Anthropic knows itself, sent by the one way that pydantic-ai leaves open.

pydantic-ai has no tool in a provider's own words: `ToolDefinition` is always written with description and schema, and
native tools are those that it knows. But the `tools` of `extra_body` replace on the wire those that it wrote. So a
request with a definition has all of its tools written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic_ai.models import Model
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool
from pydantic_ai.settings import ModelSettings

from turnwise.providers.protocol import ToolSpec
from turnwise.providers.pydantic_ai.cache import tools_cached_for
from turnwise.providers.pydantic_ai.naming import classes_of


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


_ANTHROPICS: Final = ("max_uses", "allowed_domains", "blocked_domains")


def searches_web(model: Model) -> bool:
    """Return whether a model supports web search by its provider."""
    return WebSearchTool in model.profile.get("supported_native_tools", type(model).supported_native_tools())


def with_web_search(
    native_tools: Sequence[AbstractNativeTool],
    wanted: bool | Mapping[str, Any] | None,  # noqa: FBT001 - a parameter of a model call
) -> tuple[AbstractNativeTool, ...]:
    """Return the native tools of a call: those of the model, with web search according to the parameter `web_search`.

    Args:
        native_tools: the native tools that the model was made with.
        wanted: `True` adds web search with default options if the model has none; options replace the model's;
            `False` removes web search; `None` changes nothing.
    """
    others = tuple(one for one in native_tools if not isinstance(one, WebSearchTool))
    if wanted is None or (wanted is True and len(others) < len(native_tools)):
        return tuple(native_tools)
    if wanted is False:
        return others
    options = {} if wanted is True else {name: value for name, value in wanted.items() if value is not None}
    return (*others, WebSearchTool(**options))


def written_for_anthropic(search: WebSearchTool) -> dict[str, Any]:
    """Return web search as a tool of Anthropic's Messages API."""
    written = {name: getattr(search, name) for name in _ANTHROPICS} | {
        "user_location": {"type": "approximate", **search.user_location} if search.user_location else None
    }
    given = {name: value for name, value in written.items() if value is not None}
    return {"type": "web_search_20250305", "name": "web_search", **given}
