"""Marks of Anthropic's prompt cache: where a request ends what the next one repeats.

Anthropic reads only what was written at a mark, and looks for it at most 20 blocks before a mark of the request. So a
mark stands where the request's own history ends, before what is said to the model this once, and a second one where the
history of the request before it ended: many calls and their results may stand between the two. With those of the tools
and the system prompt these are the four that Anthropic takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from pydantic_ai.settings import ModelSettings

from turnwise.states.messages import Message

Retention = Literal["5m", "1h"]
"""How long Anthropic keeps what it has cached."""
_OWN: Final = "anthropic_cache"
"""How the names of Anthropic's settings begin that stand instead of the unified `cache`."""
_LONG: Final = frozenset({"1h", "12h"})


def retention_of(setting: object) -> Retention | None:
    """Return for how long a value of `cache` has something kept; `None` if it has nothing cached."""
    if setting is False or setting is None:
        return None
    kept = setting.get("retention") if isinstance(setting, Mapping) else setting
    return "1h" if kept in _LONG else "5m"


def tools_cached_for(settings: Mapping[str, Any]) -> Retention | None:
    """Return for how long the definitions of tools are kept; `None` if they are not cached."""
    return retention_of(settings.get(f"{_OWN}_tool_definitions" if _has_own(settings) else "cache"))


def with_own_marks(settings: ModelSettings, preset: ModelSettings | None) -> tuple[ModelSettings, Retention | None]:
    """Return the settings of a call whose history is marked here, and for how long that is kept.

    pydantic-ai marks the last block of a request, which may be a reminder that never comes again.
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
    """Whether the next request has the message, too: a reminder, or a wish to go on, is said once."""
    return message.role != "system" and not (message.synthetic and not message.position)


def _has_own(settings: Mapping[str, Any]) -> bool:
    return any(name.startswith(_OWN) for name in settings)
