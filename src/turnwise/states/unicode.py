"""Mends half characters (lone surrogates) in text of models, tools and exceptions: no store can hold them."""

from __future__ import annotations

from typing import Any


def well_formed(text: str) -> str:
    """Return the text with the halves of a surrogate pair joined, and single halves replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def without_half(text: str) -> str:
    """Return the text without the first half of a character at its end: the other half may come yet."""
    return text[:-1] if "\ud800" <= text[-1:] <= "\udbff" else text


def well_formed_json(value: Any) -> Any:
    """Return a JSON value with all of its text well-formed."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed_json(key): well_formed_json(inner) for key, inner in value.items()}
        case list():
            return [well_formed_json(inner) for inner in value]
    return value
