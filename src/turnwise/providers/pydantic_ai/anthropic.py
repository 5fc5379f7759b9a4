"""What only Anthropic's Messages API has: breakpoints of the prompt cache, and tools that Anthropic defines itself.

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

Retention = Literal["5m", "1h"]
"""The lifetime of a cache entry."""
_OWN: Final = "anthropic_cache"
"""The prefix of Anthropic's own settings, which replace the unified `cache`."""
_LONG: Final = frozenset({"1h", "12h"})
_SEARCH_OPTIONS: Final = ("max_uses", "allowed_domains", "blocked_domains")


def _retention_of(setting: object) -> Retention | None:
    """Return the lifetime in a value of `cache`; `None` if the value turns the cache off."""
    if setting is False or setting is None:
        return None
    lifetime = setting.get("retention") if isinstance(setting, Mapping) else setting
    return "1h" if lifetime in _LONG else "5m"


def _tools_cached_for(settings: Mapping[str, Any]) -> Retention | None:
    """Return the lifetime of cached tool definitions; `None` if they are not cached."""
    return _retention_of(settings.get(f"{_OWN}_tool_definitions" if _has_own(settings) else "cache"))


def with_own_marks(settings: ModelSettings, preset: ModelSettings | None) -> tuple[ModelSettings, Retention | None]:
    """Return the settings for pydantic-ai, and the lifetime for turnwise's own breakpoints in the history.

    With the unified `cache`, the settings turn off pydantic-ai's breakpoint at the last block, which may be a reminder.
    The lifetime is `None` if the history is not cached.
    """
    merged: dict[str, Any] = {**(preset or {}), **settings}
    if _has_own(merged):
        return settings, _retention_of(merged.get(_OWN) or merged.get(f"{_OWN}_messages"))
    cache = merged.get("cache")
    lifetime = None if isinstance(cache, Mapping) and not cache.get("messages", True) else _retention_of(cache)
    if lifetime is None:
        return settings, None
    return cast("ModelSettings", {**settings, "cache": {"retention": lifetime, "messages": False}}), lifetime


def stays(message: Message) -> bool:
    """Whether the next request repeats the message. Reminders and prompts to continue are sent once."""
    return message.role != "system" and not (message.synthetic and not message.position)


def _has_own(settings: Mapping[str, Any]) -> bool:
    return any(name.startswith(_OWN) for name in settings)


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
    offered += [_written_search(one) for one in native_tools if isinstance(one, WebSearchTool)]
    if offered and (lasts := _tools_cached_for(merged)) is not None:
        offered[-1].setdefault("cache_control", {"type": "ephemeral", "ttl": lasts})
    betas = [*merged.get("anthropic_betas", ()), *(beta for definition in definitions for beta in definition.betas)]
    added = {"extra_body": {"tools": offered, **(merged.get("extra_body") or {})}, "anthropic_betas": betas}
    return cast("ModelSettings", {**settings, **added})


def _written(tool: ToolSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    if tool.definition is not None:
        return dict(tool.definition.tool)
    written = {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
    return written | ({"eager_input_streaming": True} if settings.get("anthropic_eager_input_streaming") else {})


def _written_search(search: WebSearchTool) -> dict[str, Any]:
    """Return web search as a tool of Anthropic's Messages API."""
    written = {name: getattr(search, name) for name in _SEARCH_OPTIONS} | {
        "user_location": {"type": "approximate", **search.user_location} if search.user_location else None
    }
    given = {name: value for name, value in written.items() if value is not None}
    return {"type": "web_search_20250305", "name": "web_search", **given}
