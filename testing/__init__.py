"""What turnwise's own tests stand on, for services that want to prove their tools and policies the same way.

`ScriptedModel` answers from a script, `StrictModel` also notes what a strict provider would refuse, `ManualClock` lets
time pass by hand. `World` lives whole worlds of chats, engines, crashes and clients from one seed, with your own tools
and settings in them. `StoreConformance` is the suite that every store has to pass, your own one too.
"""

from turnwise.persistence.conformance import StoreConformance
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation import Outside, World
from turnwise.testing.strict import StrictModel

__all__ = ["Call", "ManualClock", "Outside", "Reply", "ScriptedModel", "StoreConformance", "StrictModel", "World"]
