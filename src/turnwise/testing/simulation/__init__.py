"""Simulations of chats, engines, crashes and clients, decided by one seed."""

from turnwise.testing.simulation.actors import Outside
from turnwise.testing.simulation.faults import Faults
from turnwise.testing.simulation.witness import SITUATIONS
from turnwise.testing.simulation.world import World
from turnwise.testing.simulation.worlds import run_worlds

__all__ = ["SITUATIONS", "Faults", "Outside", "World", "run_worlds"]
