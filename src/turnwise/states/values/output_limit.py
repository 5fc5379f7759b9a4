"""The output limit: cuts values that are too long to be stored, shown and sent with every request."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from turnwise.states.values.values import Json


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


def shared_within(outputs: Sequence[Json], limit: int) -> list[Json]:
    """Return outputs whose JSON has at most `limit` bytes in all, each cut to the same size if it is longer.

    What short ones do not need is left to the others. Where not even the notes on the cuts fit, it is more.
    """
    share = _fair_share([size_in_json(output) for output in outputs], limit)
    return [_fitting(output, share) for output in outputs]


def size_in_json(output: Json) -> int:
    """Return how many bytes an output has as JSON."""
    return len(msgspec.json.encode(output))


def _fair_share(sizes: Sequence[int], limit: int) -> int:
    """Return the size down to which those that are longer must be cut; the size of the longest if all fit."""
    left = max(limit, 0)
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _fitting(output: Json, size: int) -> Json:
    """Return the output, or as much of its beginning as has at most `size` bytes in JSON, with the note on the cut."""
    if size_in_json(output) <= size:
        return output
    too_long = bisect_right(range(size), size, key=lambda limit: size_in_json(within(output, limit)))
    return within(output, max(too_long - 1, 0))


def text_within(text: str, limit: int) -> str:
    """Return a text of at most `limit` bytes, and how much was cut of a longer one."""
    return str(within(text, limit))
