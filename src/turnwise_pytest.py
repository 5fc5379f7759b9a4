"""The pytest plugin of turnwise: an engine, its model and its clock, as fixtures.

It stands beside the library, which is imported by the fixtures: a run of tests that uses none of them pays nothing, and
coverage sees what is imported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from turnwise import Engine
    from turnwise.testing import ManualClock, ScriptedModel


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until the test advances it."""
    from turnwise.testing import ManualClock  # noqa: PLC0415 - see above

    return ManualClock()


@pytest.fixture
def scripted() -> ScriptedModel:
    """A model that answers with what the test gives to its `then`, and keeps its `requests`."""
    from turnwise.testing import ScriptedModel  # noqa: PLC0415 - see above

    return ScriptedModel([])


@pytest.fixture
def engine_options() -> dict[str, Any]:
    """The arguments of `Engine` by name, for the fixture `engine`: override it with your tools, agents, deps, settings.

    By default the store is a SQLite database in memory, and model and clock are those of the fixtures.
    """
    return {}


@pytest.fixture
async def engine(engine_options: dict[str, Any], scripted: ScriptedModel, clock: ManualClock) -> AsyncIterator[Engine]:
    """An open engine, on a store of its own."""
    from turnwise import Engine  # noqa: PLC0415 - see above

    async with Engine(**{"store": "sqlite://", "model": scripted, "clock": clock, **engine_options}) as opened:
        yield opened
