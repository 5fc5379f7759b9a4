"""The tools that turnwise's own tests use, for services that test their tools and settings the same way.

`ScriptedModel` answers from a script, `StrictModel` also notes what a strict provider would refuse, `ManualClock` moves
time by hand. `crash_everywhere` kills an engine at every commit and at every await of your code. `World` simulates
chats, engines, crashes and clients from one seed, with your agents, tools and settings; `run_worlds` runs many of them.
`StoreConformance` is the suite that every store has to pass, also one of your own.
"""

from turnwise.providers.scripted import Call, Reply, ScriptedModel, by_step
from turnwise.testing.clock import ManualClock
from turnwise.testing.conformance import StoreConformance
from turnwise.testing.crash import crash_everywhere
from turnwise.testing.failures import (
    CrashFailure,
    CrashReport,
    CrashTestFailed,
    NotTested,
    WorldsFailed,
    WorldsReport,
)
from turnwise.testing.simulation import Outside, World, run_worlds
from turnwise.testing.strict import StrictModel

__all__ = [
    "Call",
    "CrashFailure",
    "CrashReport",
    "CrashTestFailed",
    "ManualClock",
    "NotTested",
    "Outside",
    "Reply",
    "ScriptedModel",
    "StoreConformance",
    "StrictModel",
    "World",
    "WorldsFailed",
    "WorldsReport",
    "by_step",
    "crash_everywhere",
    "run_worlds",
]
