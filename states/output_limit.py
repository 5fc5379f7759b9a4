"""The output limit: cuts values that are too long to be stored, shown and sent with every request."""

from __future__ import annotations

from pydantic import JsonValue
from pydantic_core import to_json


def within(output: JsonValue, limit: int) -> JsonValue:
    """Return the output if its UTF-8 has at most `limit` bytes; else its beginning as text, with a note on the cut.

    A value other than text is measured and cut as JSON.
    """
    text = output if isinstance(output, str) else to_json(output).decode()
    if len(text) * 4 <= limit:
        return output
    encoded = text.encode()
    if len(encoded) <= limit:
        return output
    kept = encoded[:limit].decode(errors="ignore")
    return f"{kept}\n[cut: {len(encoded) - len(kept.encode())} of {len(encoded)} bytes are not shown]"


def text_within(text: str, limit: int) -> str:
    """Return a text of at most `limit` bytes, and how much was cut of a longer one."""
    return str(within(text, limit))
