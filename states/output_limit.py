"""The output limit: cuts values that are too long to be stored, shown and sent with every request."""

from __future__ import annotations

import msgspec

from turnwise.states.values import Json


def within(output: Json, limit: int) -> Json:
    """Return the output if its UTF-8 has at most `limit` bytes; else its beginning as text, with a note on the cut.

    A value other than text is measured and cut as JSON.
    """
    text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
    if len(text) * 4 <= limit:
        return output
    encoded = text.encode()
    if len(encoded) <= limit:
        return output
    beginning = encoded[:limit].decode(errors="ignore")
    return f"{beginning}\n[cut: {len(encoded) - len(beginning.encode())} of {len(encoded)} bytes are not shown]"


def text_within(text: str, limit: int) -> str:
    """Return a text of at most `limit` bytes, and how much was cut of a longer one."""
    return str(within(text, limit))
