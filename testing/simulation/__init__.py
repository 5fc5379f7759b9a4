"""Simulations: whole worlds of chats, engines, crashes and clients, decided by one seed."""

from turnwise.testing.simulation.world import World

__all__ = ["World"]
