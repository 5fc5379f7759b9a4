"""Sources of tools: what a third party offers, which may change while the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from turnwise.engine.tools.declare import Tool, ToolFunction, tool
from turnwise.engine.tools.schemas import check_schema
from turnwise.logger import logger
from turnwise.states.errors import SettingsError


class Offer(NamedTuple):
    """The tools that a source has at one time. It is another object once they have changed."""

    tools: Sequence[Tool]
    retired: Sequence[Tool] = ()
    """Those that it had before: calls of them may be waiting still, but models are not offered them."""


@runtime_checkable
class ToolSource(Protocol):
    """Where tools come from that may change, such as a server of MCP. An engine that is given one enters it."""

    def offer(self) -> Offer:
        """Return the tools as far as they are known; none before the source was entered."""
        ...

    async def refresh(self) -> None:
        """Take up a change of which the source was told. It is called before each step of the model."""
        ...

    async def __aenter__(self) -> Any:
        """Learn the tools. A source may be entered several times."""
        ...

    async def __aexit__(self, *raised: object) -> None:
        """Leave it, as often as it was entered."""
        ...


Declared = Tool | Callable[..., Any] | ToolSource
"""What an agent may be given as a tool: one, a function that becomes one, or a source of several."""


def sources_in(declared: Iterable[Declared]) -> tuple[ToolSource, ...]:
    """Return the sources among declared tools."""
    return tuple(one for one in declared if not isinstance(one, Tool) and isinstance(one, ToolSource))


def tools_by_name(declared: Iterable[Declared]) -> dict[str, Tool]:
    """Return the tools by name; a bare function is declared with the defaults.

    A tool that a third party offers is left out, with a warning, if its name is taken: the program's own come first.

    Raises:
        SettingsError: two tools of the program share a name, or one cannot be declared, or has a schema that providers
            refuse.
    """
    tools = [one for entry in declared for one in _tools_of(entry)]
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


def _tools_of(entry: Declared) -> Sequence[Tool]:
    if isinstance(entry, Tool):
        return [entry]
    if isinstance(entry, ToolSource):
        offer = entry.offer()
        return [*offer.tools, *offer.retired]
    function: ToolFunction = entry
    return [tool(function)]


def warn_left_out(source: str, name: str, problem: str) -> None:
    """Say in the log that a tool of a third party is left out, and why."""
    logger.warning("tool_left_out", source=source, tool=name[:80], problem=problem)
