"""What model calls that are no step's have used: those of a summary, and those of a title."""

from __future__ import annotations

import msgspec

from turnwise.states.usage import Usage, reported


class Spending(msgspec.Struct):
    """The usage of the model calls of one compaction, or of one title."""

    usage: Usage | None = None
    """`None` while no model was called."""

    def add(self, usage: Usage | None) -> None:
        """Add a model call; one that reported nothing makes the sum partial."""
        self.usage = reported(usage) if self.usage is None else self.usage + reported(usage)
