"""Canonical JSON and the digests made of it."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from functools import partial
from operator import is_not
from typing import Any, Final, cast

import orjson
from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema, to_jsonable_python

from turnwise.states.errors import InvalidContent
from turnwise.states.values.plain import DEEPEST, is_shallow, well_formed, well_formed_json
from turnwise.states.values.values import Json, Value, fields_of


def canonical(value: Any) -> bytes:
    """Return the one JSON spelling of `value`: sorted keys, no spaces, UTF-8.

    Raises:
        InvalidContent: it cannot be written as JSON.
    """
    spelled = canonical_row(value)
    if b"null" in spelled:  # which orjson writes for NaN and the infinities, too
        try:
            _STRICT(value)
        except ValueError as error:
            raise _has_none(error) from error
    return spelled


def canonical_row(value: Any) -> bytes:
    """Return the same as `canonical`, of rows and records: they hold text, whole numbers and null, and no NaN."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _canonical_of_any(value)


def differ(one: Any, other: Any) -> bool:
    """Return whether two JSON values are spelled differently: 1, 1.0 and true are, which Python finds equal."""
    return canonical(one) != canonical(other)


MOST_ITEMS: Final = 100_000
"""At so many items the iterators in a value are given up."""
_ATOMIC: Final = frozenset({str, int, float, bool, type(None)})
_HOLDERS: Final = (list, tuple, set, frozenset, deque)
_SERIALIZER: Final = SchemaSerializer(core_schema.any_schema())
_STRICT: Final = json.JSONEncoder(allow_nan=False, check_circular=False).encode


def _canonical_of_any(value: Any) -> bytes:
    """Return the spelling of a value that orjson does not take, such as integers above 64 bits."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _has_none(error) from error


def _has_none(why: Exception) -> InvalidContent:
    return InvalidContent(f"only JSON values and well-formed Unicode can be stored: {why}")


def _too_deep() -> InvalidContent:
    return InvalidContent(f"JSON must not be nested deeper than {DEEPEST} levels")


def as_json(value: Any) -> Json:
    """Return `value` as it will be read back from a store: plain JSON.

    An iterator, also in a model or dataclass, becomes the list of its items, and what it raises is raised. Null stands
    in place of NaN and the infinities, and the mark U+FFFD in place of half characters, in keys, too.

    Raises:
        InvalidContent: it cannot be stored.
    """
    try:
        orjson.dumps(value)
    except TypeError:  # there may be an iterator in it
        value = _read(value, iter(range(MOST_ITEMS)))
    try:
        plain = _spelled(value)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        raise InvalidContent(f"only JSON values can be stored: {error}") from error
    if not is_shallow(plain):
        raise _too_deep()
    try:
        canonical(plain)
    except InvalidContent:
        plain = _spelled(well_formed_json(plain))  # a model leaves NaN and the infinities where it says `float`
        canonical(plain)
    return plain


def _read(value: Any, room: Iterator[int], above: tuple[int, ...] = ()) -> Any:
    """Return a value with lists in place of the iterators in it, as long as there is room: one may have no end.

    What holds none is returned as it is: it spells itself, by code of its own perhaps.
    """
    kind = type(value)
    if kind in _ATOMIC or id(value) in above:
        return value
    if len(above) > DEEPEST:
        raise _too_deep()
    above = (*above, id(value))
    if hasattr(kind, "__next__"):
        items = [item for item, _ in zip(value, room, strict=False)]
        if next(room, None) is None:
            raise InvalidContent(f"it must yield fewer than {MOST_ITEMS:,} items")
        return [_read(item, room, above) for item in items]
    if issubclass(kind, dict):
        keys, items = [*value], [*value.values()]
        read = [_read(item, room, above) for item in items]
        return dict(zip(keys, read, strict=True)) if any(map(is_not, read, items)) else value
    if issubclass(kind, _HOLDERS):
        items = [*value]
        read = [_read(item, room, above) for item in items]
        return read if any(map(is_not, read, items)) else value
    laid_out = _laid_out(value)
    if type(laid_out) is kind:
        return value
    read = _read(laid_out, room, above)
    return value if read is laid_out else read


def _laid_out(value: Any) -> Any:
    """Return a dataclass, a model or the like as dicts and lists of what it holds; anything else as it is.

    Of an iterator in it nothing is read yet.
    """
    if isinstance(value, Value):
        return fields_of(value)
    try:
        return _SERIALIZER.to_python(value, by_alias=True, warnings=False)
    except Exception:  # noqa: BLE001 - a set of models, say: it has JSON, but there is no set of dicts
        return {**getattr(value, "__dict__", {})} or value


def _spelled(value: Any) -> Json:
    to_json = partial(to_jsonable_python, inf_nan_mode="null", fallback=fields_of)
    try:
        return cast("Json", to_json(value))
    except UnicodeEncodeError:  # half characters in keys, which pydantic does not take
        python = _SERIALIZER.to_python(value, by_alias=True, fallback=fields_of)
        return cast("Json", to_json(_with_whole_text(python)))


def _with_whole_text(value: Any) -> Any:
    """Return a value with all of its text well-formed, keys included; of keys that become the same the last stays."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {_with_whole_text(key): _with_whole_text(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_with_whole_text, value))
    return [*map(_with_whole_text, value)] if isinstance(value, list | deque) else value


def digest(value: Any) -> str:
    """Return the SHA-256, hex, of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def salted(salt: str, spelled: str | bytes) -> str:
    """Return the SHA-256, hex, of `salt`, a newline and `spelled`.

    Someone who has the digest can guess a short text only as long as the salt exists.
    """
    content = spelled.encode() if isinstance(spelled, str) else spelled
    return hashlib.sha256(salt.encode() + b"\n" + content).hexdigest()


def guarded(salt: str, digest: str) -> str:
    """Return a digest in its stored form: salted, so that its content cannot be guessed; without a salt, unchanged."""
    return salted(salt, digest) if salt else digest


def derived(salt: str, *names: str | int) -> str:
    """Return the salt of one thing, derived from a commit's salt; it reveals no other. Empty if that is empty."""
    return hashlib.sha256("\n".join([salt, *map(str, names)]).encode()).hexdigest()[:32] if salt else ""
