"""Simulations of chats, engines, crashes and clients, decided by one seed."""

from turnwise.testing.simulation.actors import Outside
from turnwise.testing.simulation.mischief import Mischief
from turnwise.testing.simulation.witness import SITUATIONS
from turnwise.testing.simulation.world import World
from turnwise.testing.simulation.worlds import run_worlds

__all__ = ["SITUATIONS", "Mischief", "Outside", "World", "run_worlds"]
