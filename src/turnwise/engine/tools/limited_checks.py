"""Checks by JSON schema within a time limit: a short schema of a client can ask for days of work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

TO_DECLARE: Final = 3.0
"""CPU seconds to check the tools of a chat as they are declared: no other chat goes on meanwhile."""
TO_CALL: Final = 0.5
"""CPU seconds to coerce the arguments of a call, and again to check them."""

Check = Callable[[Any, Any, Any, Any], Any]
"""Checks one word of a schema: of a validator, the word's value, the instance and the schema."""

_until: ContextVar[float | None] = ContextVar("until", default=None)
"""The CPU time of the thread, in seconds, at which the limited checks end."""


class TooCostly(Exception):
    """A check takes longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Limit the CPU time of all checks inside together. They skip patterns, whose matching cannot be interrupted."""
    outer = _until.get()
    token = _until.set(thread_time() + seconds if outer is None else outer)
    try:
        yield
    finally:
        _until.reset(token)


def go_on() -> None:
    """Raise `TooCostly` if the limit of the checks is reached."""
    until = _until.get()
    if until is not None and thread_time() > until:
        raise TooCostly


@functools.cache
def limited_kind(kind: type[Validator]) -> type[Validator]:
    """Return a class of validators of the same draft that keep to the limits."""
    from jsonschema.validators import extend  # noqa: PLC0415 - takes long to import, and few tools need it

    extended = cast("Any", extend)(kind, {word: _limit_check(word, check) for word, check in kind.VALIDATORS.items()})
    evolve = extended.evolve

    def evolve_within(validator: Validator, **changes: Any) -> Validator:
        """A schema inside that names a draft would be checked by the draft's own class, without limits."""
        schema = changes.get("schema")
        if isinstance(schema, Mapping) and "$schema" in schema:
            changes["schema"] = {word: value for word, value in schema.items() if word != "$schema"}
        evolved: Validator = evolve(validator, **changes)
        return evolved

    extended.evolve = evolve_within
    return cast("type[Validator]", extended)


def _limit_check(word: str, check: Check) -> Check:
    def check_within(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        go_on()
        skipped = _until.get() is not None and _matches_patterns(word, schema)
        return None if skipped else check(validator, value, instance, schema)

    return check_within


def _matches_patterns(word: str, schema: Any) -> bool:
    """Whether the check of a word matches patterns: its own, those beside it, or those of schemas inside."""
    if word == "additionalProperties":
        return "patternProperties" in schema
    return word in ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems")
