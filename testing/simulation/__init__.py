"""Simulations of chats, engines, crashes and clients, decided by one seed."""

from turnwise.testing.simulation.actors import Outside
from turnwise.testing.simulation.mischief import Mischief
from turnwise.testing.simulation.world import World

__all__ = ["Mischief", "Outside", "World"]
