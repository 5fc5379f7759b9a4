"""Limits on arguments of public functions, beyond their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from turnwise.states.names import WORKER
from turnwise.states.values.digests import canonical
from turnwise.states.values.hints import Validator
from turnwise.states.values.plain import Misfit


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


def said(value: str) -> str:
    """Refuse blank text."""
    if not value.strip():
        raise Misfit("must say something; it was empty")
    return value


def _no_worker(actor: str) -> str:
    if actor.startswith(WORKER):
        raise Misfit(f"must not begin with {WORKER!r}: that is how the log names turnwise's workers")
    return actor


Key = Annotated[str, AfterValidator(at_most(1024))]
"""Text by which something is found, such as an owner; longer text does not fit into a database's index."""
Name = Annotated[Key, AfterValidator(said)]
"""A key that is not empty."""
Actor = Annotated[Name, AfterValidator(_no_worker)]
"""Who acts, as the audit log names them."""
Label = Annotated[str, AfterValidator(at_most(16_384))]
"""Text for people, such as a title or a reason."""
Description = Annotated[str, AfterValidator(said), AfterValidator(at_most(65_536))]
"""Text that the model reads with every request."""
JsonObject = Annotated[Mapping[str, Any], AfterValidator(json_at_most(262_144))]
"""JSON that is loaded with every chat, such as its metadata."""
PageSize = Annotated[int, Field(ge=1, le=10_000)]
"""How many items a page has."""
Ordinal = Annotated[int, Field(ge=0, le=2**53)]
"""The number of an event or a version; 0 is before the first."""
Seconds = Annotated[float, Field(ge=0)]
"""A time to wait; 0 looks once, and waits for nothing."""
Duration = Annotated[Seconds, Field(allow_inf_nan=False)]
"""A time that has an end."""
Count = Annotated[int, Field(ge=0, le=2**53)]
"""How many there are, perhaps none."""
Positive = Annotated[int, Field(ge=1, le=2**53)]
"""How many there are, at least one."""
