"""Sources of tools: third parties whose tools may change while the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from turnwise.engine.tools.declare import Tool, ToolFunction, tool
from turnwise.engine.tools.schemas import check_schema
from turnwise.logger import logger
from turnwise.states.errors import SettingsError


class Offer(NamedTuple):
    """The tools of a source at one time. A source makes a new `Offer` whenever its tools change."""

    tools: Sequence[Tool]
    retired: Sequence[Tool] = ()
    """Former tools. Open calls of them still run, but models are not offered them."""


@runtime_checkable
class ToolSource(Protocol):
    """A third party with tools that may change, such as an MCP server. The engine enters its sources."""

    def offer(self) -> Offer:
        """Return the current tools; before the source is entered, none."""
        ...

    async def refresh(self) -> None:
        """Load the tools again if the source was notified of a change. The engine calls it before each model call."""
        ...

    async def __aenter__(self) -> Any:
        """Load the tools. A source may be entered several times."""
        ...

    async def __aexit__(self, *raised: object) -> None:
        """Close the source at the last exit."""
        ...


Declared = Tool | Callable[..., Any] | ToolSource
"""An entry of `tools=`: a tool, a function that becomes one, or a source."""


def sources_in(declared: Iterable[Declared]) -> tuple[ToolSource, ...]:
    return tuple(one for one in declared if not isinstance(one, Tool) and isinstance(one, ToolSource))


def tools_by_name(declared: Iterable[Declared]) -> dict[str, Tool]:
    """Return the tools by name. A function becomes a tool with default options.

    The program's own tools take precedence: a third party's tool of the same name is left out, with a warning.
    """
    tools = [one for entry in declared for one in _list_tools(entry)]
    own: dict[str, Tool] = {}
    for one in tools:
        if one.signature is None:
            check_schema(f"tool {one.name!r}", one.schema)
        if one.source is not None:
            continue
        if one.name in own:
            raise SettingsError("tools", f"two tools are named {one.name!r}; names must be unique")
        own[one.name] = one
    by_name: dict[str, Tool] = {}
    for one in tools:
        taken = own.get(one.name) or by_name.get(one.name)
        if one.source is None or taken is None:
            by_name[one.name] = one
        elif taken is not one:
            warn_left_out(one.source, one.name, "another tool has this name; give its server a prefix=...")
    return by_name


def _list_tools(entry: Declared) -> Sequence[Tool]:
    if isinstance(entry, Tool):
        return [entry]
    if isinstance(entry, ToolSource):
        offer = entry.offer()
        return [*offer.tools, *offer.retired]
    function: ToolFunction = entry
    return [tool(function)]


def warn_left_out(source: str, name: str, problem: str) -> None:
    """Log a warning that a third party's tool is left out, and why."""
    logger.warning("tool_left_out", source=source, tool=name[:80], problem=problem)
