"""The tools that turnwise's own tests use, for services that test their tools and settings the same way.

`ScriptedModel` answers from a script, `StrictModel` also notes what a strict provider would refuse, `ManualClock` moves
time by hand. `World` simulates chats, engines, crashes and clients from one seed, with your own tools and settings.
`StoreConformance` is the suite that every store has to pass, also one of your own.
"""

from turnwise.persistence.conformance import StoreConformance
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation import Outside, World
from turnwise.testing.strict import StrictModel

__all__ = ["Call", "ManualClock", "Outside", "Reply", "ScriptedModel", "StoreConformance", "StrictModel", "World"]
