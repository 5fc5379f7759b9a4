"""Anthropic's Messages API only: breakpoints of the prompt cache, and tools that Anthropic defines itself.

Anthropic writes the cache at a breakpoint, and looks for cached prefixes up to 20 blocks before a breakpoint. The first
breakpoint stands at the end of the history, before reminders, which the next request does not repeat. The second stands
at the end of the previous request's history, because calls and results can fill more than 20 blocks between the two.
With those of the tools and the system prompt, these are the four breakpoints that Anthropic allows.

pydantic-ai has no tool in a provider's own words: it always writes `ToolDefinition` with description and schema. But
the `tools` of `extra_body` replace those that it wrote. So a request with a definition has all of its tools written
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from pydantic_ai.models import Model
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool
from pydantic_ai.settings import ModelSettings

from turnwise.providers.protocol import ToolSpec
from turnwise.providers.pydantic_ai.naming import classes_of
from turnwise.states.messages import Message

CacheTTL = Literal["5m", "1h"]
"""Lifetime of a cache entry."""
_ANTHROPIC_CACHE_PREFIX: Final = "anthropic_cache"
"""The prefix of Anthropic's own settings, which replace the unified `cache`."""
_LONG: Final = frozenset({"1h", "12h"})
_SEARCH_OPTIONS: Final = ("max_uses", "allowed_domains", "blocked_domains")


def _parse_cache_ttl(setting: object) -> CacheTTL | None:
    """Parse the lifetime in a value of `cache`; `None` if the value turns the cache off."""
    if setting is False or setting is None:
        return None
    ttl = setting.get("retention") if isinstance(setting, Mapping) else setting
    return "1h" if ttl in _LONG else "5m"


def _tools_ttl(settings: Mapping[str, Any]) -> CacheTTL | None:
    """Return the lifetime of cached tool definitions; `None` if they are not cached."""
    return _parse_cache_ttl(
        settings.get(
            f"{_ANTHROPIC_CACHE_PREFIX}_tool_definitions" if _has_anthropic_cache_settings(settings) else "cache"
        )
    )


def with_history_cache(
    settings: ModelSettings, model_settings: ModelSettings | None
) -> tuple[ModelSettings, CacheTTL | None]:
    """Return the settings for pydantic-ai, and the lifetime for turnwise's own breakpoints in the history.

    With the unified `cache`, the settings turn off pydantic-ai's breakpoint at the last block, which may be a reminder.
    The lifetime is `None` if the history is not cached.
    """
    merged: dict[str, Any] = {**(model_settings or {}), **settings}
    if _has_anthropic_cache_settings(merged):
        return settings, _parse_cache_ttl(
            merged.get(_ANTHROPIC_CACHE_PREFIX) or merged.get(f"{_ANTHROPIC_CACHE_PREFIX}_messages")
        )
    cache = merged.get("cache")
    ttl = None if isinstance(cache, Mapping) and not cache.get("messages", True) else _parse_cache_ttl(cache)
    if ttl is None:
        return settings, None
    return cast("ModelSettings", {**settings, "cache": {"retention": ttl, "messages": False}}), ttl


def is_resent(message: Message) -> bool:
    """Whether the next request repeats the message. Reminders and prompts to continue are sent once."""
    return message.role != "system" and not (message.synthetic and not message.position)


def _has_anthropic_cache_settings(settings: Mapping[str, Any]) -> bool:
    return any(name.startswith(_ANTHROPIC_CACHE_PREFIX) for name in settings)


def is_anthropic_model(model: Model) -> bool:
    """Whether a model of pydantic-ai calls Anthropic's Messages API."""
    return "AnthropicModel" in classes_of(model)


def with_provider_defined_tools(
    settings: ModelSettings,
    tools: Sequence[ToolSpec],
    model_settings: ModelSettings | None,
    native_tools: Sequence[AbstractNativeTool] = (),
) -> ModelSettings:
    """Add the tools to the settings of a call, in Anthropic's format.

    Returns `settings` unchanged if no tool is provider-defined. Drops tools that `tool_choice` excludes, and sets
    `cache_control` on the last remaining tool, like pydantic-ai. Of `native_tools` only web search can be combined with
    a provider-defined tool.
    """
    definitions = [tool.definition for tool in tools if tool.definition is not None]
    if not definitions:
        return settings
    merged: dict[str, Any] = {**(model_settings or {}), **settings}
    choice = merged.get("tool_choice")
    offered = [_tool_param(tool, merged) for tool in tools if not isinstance(choice, list) or tool.name in choice]
    offered += [_search_param(one) for one in native_tools if isinstance(one, WebSearchTool)]
    if offered and (ttl := _tools_ttl(merged)) is not None:
        offered[-1].setdefault("cache_control", {"type": "ephemeral", "ttl": ttl})
    betas = [*merged.get("anthropic_betas", ()), *(beta for definition in definitions for beta in definition.betas)]
    added = {"extra_body": {"tools": offered, **(merged.get("extra_body") or {})}, "anthropic_betas": betas}
    return cast("ModelSettings", {**settings, **added})


def _tool_param(tool: ToolSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    if tool.definition is not None:
        return dict(tool.definition.tool)
    written = {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
    return written | ({"eager_input_streaming": True} if settings.get("anthropic_eager_input_streaming") else {})


def _search_param(search: WebSearchTool) -> dict[str, Any]:
    """Return web search as a tool of Anthropic's Messages API."""
    written = {name: getattr(search, name) for name in _SEARCH_OPTIONS} | {
        "user_location": {"type": "approximate", **search.user_location} if search.user_location else None
    }
    given = {name: value for name, value in written.items() if value is not None}
    return {"type": "web_search_20250305", "name": "web_search", **given}
