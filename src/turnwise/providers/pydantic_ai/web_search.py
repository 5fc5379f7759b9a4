"""The parameter `web_search`: web search by the provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic_ai.models import Model
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool

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
