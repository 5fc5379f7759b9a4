"""Limits: the arguments of public functions that have one beyond their type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from turnwise.states.shapes import at_most, between, json_at_most, number_at_least, said

Key = Annotated[str, at_most(1024)]
"""Text by which something is found again, such as an owner: an index of a database has no room for more."""
Name = Annotated[Key, said]
"""A key that is not empty."""
Label = Annotated[str, at_most(16_384)]
"""Text for people, such as a title or a reason."""
Description = Annotated[str, said, at_most(65_536)]
"""Text that the model reads with every request."""
JsonObject = Annotated[Mapping[str, Any], json_at_most(262_144)]
"""JSON that is read with every chat, such as its metadata."""
PageSize = Annotated[int, between(1, 10_000)]
"""How many to give at once."""
Ordinal = Annotated[int, between(0, 2**53)]
"""The number of an event or a version; 0 stands before the first."""
Seconds = Annotated[float, number_at_least(0)]
"""A time to wait; 0 looks once."""
Count = Annotated[int, between(0, 2**53)]
"""How many there are, perhaps none."""
Positive = Annotated[int, between(1, 2**53)]
"""How many there are, at least one."""
