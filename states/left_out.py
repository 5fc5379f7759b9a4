"""Content that a provider refused, and that its model is sent no more: a note stands in its place."""

from __future__ import annotations

from typing import Final

from turnwise.states.values import Value

MOST_LEFT_OUT: Final = 100
"""How much of a chat may be left out: what a provider refuses beyond that ends the turn."""
REFUSED: Final = "the provider refused it"


class LeftOut(Value, frozen=True):
    """A part of a message that a model is not sent."""

    message_id: str
    model: str
    """The model whose provider refused it: another one may take it."""
    part: int | None = None
    """Its place in the message; `None` for all parts."""
    file: int | None = None
    """Of the result of a tool, which of its files; `None` for all of it."""
    step: int = 0
    """The step whose request was refused."""

    @property
    def place(self) -> tuple[str, str, int | None, int | None]:
        """What is left out, and for which model."""
        return self.message_id, self.model, self.part, self.file


def note_of_file(name: str | None, media_type: str, fault: str) -> str:
    """Return what stands in a prompt in place of a file."""
    return f"[The file {name or 'without a name'} ({media_type}) is left out here: {fault}.]"
