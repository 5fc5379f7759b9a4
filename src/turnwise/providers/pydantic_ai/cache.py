"""Cache breakpoints for Anthropic's prompt cache.

Anthropic writes the cache at a breakpoint, and looks for cached prefixes up to 20 blocks before a breakpoint. The first
breakpoint stands at the end of the history, before reminders, which the next request does not repeat. The second stands
at the end of the previous request's history, because calls and results can fill more than 20 blocks between the two.
With those of the tools and the system prompt, these are the four breakpoints that Anthropic allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from pydantic_ai.settings import ModelSettings

from turnwise.states.messages import Message

Retention = Literal["5m", "1h"]
"""The lifetime of a cache entry."""
_OWN: Final = "anthropic_cache"
"""The prefix of Anthropic's own settings, which replace the unified `cache`."""
_LONG: Final = frozenset({"1h", "12h"})


def retention_of(setting: object) -> Retention | None:
    """Return the lifetime in a value of `cache`; `None` if the value turns the cache off."""
    if setting is False or setting is None:
        return None
    kept = setting.get("retention") if isinstance(setting, Mapping) else setting
    return "1h" if kept in _LONG else "5m"


def tools_cached_for(settings: Mapping[str, Any]) -> Retention | None:
    """Return the lifetime of cached tool definitions; `None` if they are not cached."""
    return retention_of(settings.get(f"{_OWN}_tool_definitions" if _has_own(settings) else "cache"))


def with_own_marks(settings: ModelSettings, preset: ModelSettings | None) -> tuple[ModelSettings, Retention | None]:
    """Return the settings for pydantic-ai, and the lifetime for turnwise's own breakpoints in the history.

    With the unified `cache`, the settings turn off pydantic-ai's breakpoint at the last block, which may be a reminder.
    The lifetime is `None` if the history is not cached.
    """
    merged: dict[str, Any] = {**(preset or {}), **settings}
    if _has_own(merged):
        return settings, retention_of(merged.get(_OWN) or merged.get(f"{_OWN}_messages"))
    cache = merged.get("cache")
    kept = None if isinstance(cache, Mapping) and not cache.get("messages", True) else retention_of(cache)
    if kept is None:
        return settings, None
    return cast("ModelSettings", {**settings, "cache": {"retention": kept, "messages": False}}), kept


def stays(message: Message) -> bool:
    """Whether the next request repeats the message. Reminders and prompts to continue are sent once."""
    return message.role != "system" and not (message.synthetic and not message.position)


def _has_own(settings: Mapping[str, Any]) -> bool:
    return any(name.startswith(_OWN) for name in settings)
