"""Refused parts of messages: prompts for the model have a note in their place."""

from __future__ import annotations

from typing import Final

from turnwise.states.values.values import Value

MOST_LEFT_OUT: Final = 100
"""The limit of each chat; the next refusal ends the turn."""
REFUSED: Final = "the provider refused it"


class LeftOut(Value, frozen=True):
    """A part of a message that is left out of one model's prompts."""

    message_id: str
    model: str
    """The model whose provider refused the part. Other models still get it."""
    part: int | None = None
    """The index of the part in the message; `None` for all parts."""
    file: int | None = None
    """The index of a file in a tool's result; `None` for the whole part."""
    step: int = 0
    """The step whose request was refused."""

    @property
    def place(self) -> tuple[str, str, int | None, int | None]:
        """The key of the part and the model, without the step."""
        return self.message_id, self.model, self.part, self.file


def note_of_file(name: str | None, media_type: str, fault: str) -> str:
    return f"[The file {name or 'without a name'} ({media_type}) is left out here: {fault}.]"
