"""Tools that only the client can run: what is checked when a chat declares them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from turnwise.engine.config.settings import LONGEST
from turnwise.engine.tools.limited_checks import TO_DECLARE, limited
from turnwise.engine.tools.schemas import check_name, check_schema
from turnwise.states.calls import ClientTool
from turnwise.states.errors import SettingsError


def check_client_tools(tools: Sequence[ClientTool]) -> tuple[ClientTool, ...]:
    """Return the tools that a client declares, checked, but for names of the agent's tools.

    Raises:
        SettingsError: a name is used twice or refused by providers, a schema is not a valid object schema or takes too
            long to check, or a deadline is not positive or too long.
    """
    taken: set[str] = set()
    with limited(TO_DECLARE):
        for tool in tools:
            _check(tool, taken)
            taken.add(tool.name)
    return tuple(tools)


def _check(tool: ClientTool, taken: Collection[str]) -> None:
    whose = f"client tool {tool.name!r}"
    check_name(whose, tool.name)
    if tool.name in taken:
        raise SettingsError(whose, "needs a name of its own; another tool has this one")
    check_schema(whose, tool.input_schema)
    if tool.deadline is not None and not 0 < tool.deadline <= LONGEST:
        raise SettingsError(
            whose, f"deadline must be above 0 s, and {LONGEST:.0f} s (30 years) at most; it was {tool.deadline}"
        )
