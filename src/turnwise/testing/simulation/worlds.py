"""Many worlds, which together have to meet everything that a world promises to test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from turnwise.states.errors import InvalidArgument
from turnwise.states.names import ChatState
from turnwise.states.values.checked import checked
from turnwise.testing.failures import NotTested, WorldsFailed, WorldsReport
from turnwise.testing.simulation.witness import SITUATIONS, missing_in
from turnwise.testing.simulation.world import World

_ADVICE: Final = (
    "Run more worlds, let the settings and the model allow it, or name it in except_for=... if the product has no such"
    " thing."
)


@checked
async def run_worlds(
    make_world: Callable[[int], World], *, seeds: Iterable[int] = range(50), except_for: Collection[str] = ()
) -> WorldsReport:
    """Run a world for each seed, and check that together they met all situations.

    That is: chats in every state, each of the situations of `SITUATIONS`, and a success of every tool.

    Args:
        make_world: makes the world of a seed, as `World(seed, tools=..., deps=...)`.
        seeds: the seeds.
        except_for: what need not be met: states, situations and tools, by name.

    Raises:
        WorldsFailed: worlds found problems.
        NotTested: something was not met; the text says what, and of a tool why.
    """
    problems: dict[int, list[str]] = {}
    worlds: list[World] = []
    for seed in seeds:
        world = make_world(seed)
        if not worlds:
            _check(except_for, {*map(str, ChatState), *SITUATIONS, *world.cast.every_tool})
        worlds.append(world)
        if found := await world.run():
            problems[seed] = found
    if problems:
        raise WorldsFailed(problems)
    if not worlds:
        raise NotTested(["no world: there are no seeds"], "Give some seeds.")
    tools, witnesses = worlds[0].cast.every_tool, [world.witness for world in worlds]
    if missing := missing_in(witnesses, tools, except_for=except_for):
        raise NotTested(missing, _ADVICE)
    succeeded = {name: sum(one.tools[name].succeeded for one in witnesses if name in one.tools) for name in tools}
    return WorldsReport(tuple(world.seed for world in worlds), succeeded)


def _check(except_for: Collection[str], known: Collection[str]) -> None:
    for name in except_for:
        if name not in known:
            raise InvalidArgument("except_for", f"names {name!r}, which is none of {', '.join(sorted(known))}")
