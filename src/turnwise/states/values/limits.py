"""Limits: on arguments of public functions, beyond their types, and on outputs, which are cut."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, Field, WithJsonSchema

from turnwise.states.names import WORKER
from turnwise.states.values.digests import canonical
from turnwise.states.values.hints import Validator
from turnwise.states.values.plain import Misfit
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


def at_most(size: int) -> Validator:
    """Return a check of text of at most `size` bytes as UTF-8."""

    def fits(value: str) -> str:
        length = len(value.encode())
        if length > size:
            raise Misfit(f"must be {size:,} bytes at most; it was {length:,}")
        return value

    return fits


def json_at_most(size: int) -> Validator:
    """Return a check of JSON of at most `size` bytes."""

    def fits(value: Any) -> Any:
        length = len(canonical(value))
        if length > size:
            raise Misfit(f"must be {size:,} bytes of JSON at most; it was {length:,}")
        return value

    return fits


def not_blank(value: str) -> str:
    if not value.strip():
        raise Misfit("must say something; it was empty")
    return value


def fair_key(value: str) -> str:
    """Refuse what does not say by which key chats share workers."""
    if value != "owner" and (not value.startswith("metadata.") or value == "metadata."):
        raise Misfit(f"must be 'owner', or 'metadata.' and the name of an entry; it was {value!a:.60}")
    return value


_SCHEDULE_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _schedule_id(value: str) -> str:
    if not re.fullmatch(_SCHEDULE_ID, value):
        raise Misfit("must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit")
    return value


def _in_utc(time: datetime) -> datetime:
    if time.utcoffset() is None:
        raise Misfit(f"must have a time zone, such as UTC; it was {time.isoformat()}")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise Misfit(f"must be between the years 1 and 9999 in UTC; it was {time.isoformat()}") from None


def _no_worker(actor: str) -> str:
    if actor.startswith(WORKER):
        raise Misfit(f"must not begin with {WORKER!r}: that is how the log names turnwise's workers")
    return actor


Key = Annotated[str, AfterValidator(at_most(1024))]
"""Text by which something is found, such as an owner; longer text does not fit into a database's index."""
Name = Annotated[Key, AfterValidator(not_blank)]
"""A key that is not empty."""
Actor = Annotated[Name, AfterValidator(_no_worker)]
"""Who acts, as the audit log names them."""
ScheduleId = Annotated[
    str, AfterValidator(_schedule_id), WithJsonSchema({"type": "string", "pattern": f"^{_SCHEDULE_ID}$"})
]
"""The name of a schedule: it stands in paths of HTTP."""
Label = Annotated[str, AfterValidator(at_most(16_384))]
"""Text for people, such as a title or a reason."""
Description = Annotated[str, AfterValidator(not_blank), AfterValidator(at_most(65_536))]
"""Text that the model reads with every request."""
JsonObject = Annotated[Mapping[str, Any], AfterValidator(json_at_most(262_144))]
"""JSON that is loaded with every chat, such as its metadata."""
PageSize = Annotated[int, Field(ge=1, le=10_000)]
"""How many items a page has."""
Ordinal = Annotated[int, Field(ge=0, le=2**53)]
"""The number of an event or a version; 0 is before the first."""
Moment = Annotated[datetime, AfterValidator(_in_utc)]
"""A time with an offset from UTC."""
Seconds = Annotated[float, Field(ge=0)]
"""A time to wait; 0 looks once, and waits for nothing."""
Duration = Annotated[Seconds, Field(allow_inf_nan=False)]
"""A time that has an end."""
Count = Annotated[int, Field(ge=0, le=2**53)]
"""How many there are, perhaps none."""
Positive = Annotated[int, Field(ge=1, le=2**53)]
"""How many there are, at least one."""
