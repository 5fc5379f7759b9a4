"""Simulations: whole worlds of chats, engines, crashes and clients, decided by one seed."""

from turnwise.testing.simulation.actors import Outside
from turnwise.testing.simulation.world import World

__all__ = ["Outside", "World"]
