"""Chats: every method that an engine and a client have in common, declared once."""

from __future__ import annotations

from typing import Final

from turnwise.engine.chats.declaration import commands_of
from turnwise.engine.chats.management import ChatManagement
from turnwise.engine.chats.turns import Turns


class Chats(ChatManagement, Turns):
    """The chats of an engine in this process, or of a service: write functions for both with this type.

    Methods return what is stored, and raise the same errors on either side.
    """


COMMANDS: Final = commands_of(Chats)
"""The declared methods, by name."""
