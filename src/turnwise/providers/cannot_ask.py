"""The error of a process that cannot ask a model that there is."""

from __future__ import annotations

from turnwise.states.errors import SettingsError


class CannotAsk(SettingsError):
    """This process has not what a named model needs: its provider's library, or a key. Nothing was stored.

    It is no mistake in the name, so a process that only writes and reads takes the name nevertheless.
    """
