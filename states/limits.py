"""Limits on arguments of public functions, beyond their types."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf
from typing import Annotated, Any, TypeVar

from turnwise.states.digests import canonical
from turnwise.states.plain import Misfit, shown
from turnwise.states.shapes import Shape

T = TypeVar("T")


def at_most(size: int) -> Shape:
    """Return the shape of text of at most `size` bytes as UTF-8."""

    def fits(value: str) -> str:
        length = len(value.encode())
        if length > size:
            raise Misfit(f"must be {size:,} bytes at most; it was {length:,}")
        return value

    return fits


def json_at_most(size: int) -> Shape:
    """Return the shape of JSON of at most `size` bytes."""

    def fits(value: Any) -> Any:
        length = len(canonical(value))
        if length > size:
            raise Misfit(f"must be {size:,} bytes of JSON at most; it was {length:,}")
        return value

    return fits


def between(least: int, most: int) -> Shape:
    """Return the shape of whole numbers from `least` to `most`."""

    def fits(value: int) -> int:
        if not least <= value <= most:
            raise Misfit(f"must be from {least} to {most}; it was {shown(value)}")
        return value

    return fits


def number_at_least(least: float) -> Shape:
    """Return the shape of numbers of at least `least`."""

    def fits(value: float) -> float:
        if not value >= least:
            raise Misfit(f"must be at least {least}; it was {shown(value)}")
        return value

    return fits


def number_between(least: float, most: float) -> Shape:
    """Return the shape of numbers from `least` to `most`."""

    def fits(value: float) -> float:
        if not least <= value <= most:
            raise Misfit(f"must be from {least} to {most}; it was {shown(value)}")
        return value

    return fits


def finite(value: float) -> float:
    """Refuse what has no end."""
    if isinf(value):
        raise Misfit(f"must be finite; it was {shown(value)}")
    return value


def said(value: str) -> str:
    """Refuse blank text."""
    if not value.strip():
        raise Misfit("must say something; it was empty")
    return value


def some(value: T) -> T:
    """Refuse a collection of nothing."""
    if not value:
        raise Misfit("must name one at least; it was empty")
    return value


Key = Annotated[str, at_most(1024)]
"""Text by which something is found, such as an owner; longer text does not fit into a database's index."""
Name = Annotated[Key, said]
"""A key that is not empty."""
Label = Annotated[str, at_most(16_384)]
"""Text for people, such as a title or a reason."""
Description = Annotated[str, said, at_most(65_536)]
"""Text that the model reads with every request."""
JsonObject = Annotated[Mapping[str, Any], json_at_most(262_144)]
"""JSON that is loaded with every chat, such as its metadata."""
PageSize = Annotated[int, between(1, 10_000)]
"""How many items a page has."""
Ordinal = Annotated[int, between(0, 2**53)]
"""The number of an event or a version; 0 is before the first."""
Seconds = Annotated[float, number_at_least(0)]
"""A time to wait; 0 looks once, and waits for nothing."""
Duration = Annotated[Seconds, finite]
"""A time that has an end."""
Count = Annotated[int, between(0, 2**53)]
"""How many there are, perhaps none."""
Positive = Annotated[int, between(1, 2**53)]
"""How many there are, at least one."""
