"""Shapes: checks of values, made from type hints. A failed check says what was wrong and what would be right."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from turnwise.states.plain import BIGGEST, Misfit, listed, of_kind, plain, shown, text

Shape = Callable[[Any], Any]
"""Returns the value in the form in which it is used, or raises `Misfit`."""


class _Looks:
    """In `Annotated`: who checks an argument."""


LATER: Final = _Looks()
"""In `Annotated`: the function checks the argument itself, before it does anything."""
RAW: Final = _Looks()
"""In `Annotated`: the argument must be of the type, but need not be storable."""


def shape_of(hint: Any) -> Shape | None:  # noqa: PLR0911 - one return per kind of hint
    """Return the shape that a type hint asks for; `None` if it allows anything."""
    if hint is None:
        return _kind(types.NoneType, "None")
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin = get_origin(hint)
    if origin is Annotated:
        return _annotated(hint)
    if origin is Literal:
        return _one_of(get_args(hint))
    if origin in (Union, types.UnionType):
        return _any_of(hint)
    if origin is not None:
        return _generic(origin, get_args(hint))
    return _instance(hint) if isinstance(hint, type) else None


def _annotated(hint: Any) -> Shape | None:
    base, *extra = get_args(hint)
    if LATER in extra:
        return None
    if RAW in extra:
        return _kind(base, _named(base))
    first = shape_of(base)
    shapes = [shape for shape in (first, *extra) if callable(shape)]

    def fits(value: Any) -> Any:
        for shape in shapes:
            value = shape(value)
        return value

    return fits


def _one_of(words: Sequence[str | int], made: Callable[[Any], Any] = lambda word: word) -> Shape:
    allowed = frozenset(words)

    def fits(value: Any) -> Any:
        word = text(value) if of_kind(value, str) else value if type(value) is int else None
        if word not in allowed:
            raise Misfit(f"must be one of {', '.join(map(repr, words))}; it was {shown(value)}")
        return made(word)

    return fits


def _any_of(hint: Any) -> Shape | None:
    hints = get_args(hint)
    if all(isinstance(one, type) and one not in _SCALARS and not _special(one) for one in hints):
        return _kind(hints, " or ".join(map(_named, hints)))
    shapes = [shape for one in hints if (shape := shape_of(one)) is not None]
    if len(shapes) < len(hints):
        return None
    wanted = " or ".join(dict.fromkeys(_named(one) for one in hints if not _stands_for_nothing(one)))

    def fits(value: Any) -> Any:
        nearest: Misfit | None = None
        for shape in shapes:
            try:
                return shape(value)
            except Misfit as misfit:
                nearest = misfit if not misfit.type_only else nearest
        raise nearest or Misfit(f"must be {wanted}; it was {shown(value)}", type_only=True)

    return fits


def _stands_for_nothing(hint: Any) -> bool:
    """Whether a type has one value alone, by which a parameter tells that nothing was given."""
    return isinstance(hint, type) and issubclass(hint, Enum) and len(hint) == 1


def _generic(origin: Any, inner: tuple[Any, ...]) -> Shape | None:
    if origin in (Callable, typing.get_origin(Callable[..., Any])):
        return _callable
    if issubclass(origin, Mapping):
        return _texts if inner == (str, str) else plain_object
    if issubclass(origin, tuple) and Ellipsis not in inner:
        return _row(inner)
    if issubclass(origin, Collection):
        return _collection(origin, shape_of(inner[0]))
    if issubclass(origin, Iterable):
        return _iterable(shape_of(inner[0]))
    return _instance(origin)


def _collection(origin: Any, shape: Shape | None) -> Shape:
    wanted = "a sequence" if issubclass(origin, Sequence) else "a collection"
    kind = Sequence if issubclass(origin, Sequence) else Collection

    def fits(value: Any) -> Any:
        if of_kind(value, str, bytes, bytearray, Mapping) or not of_kind(value, kind):
            raise Misfit(f"must be {wanted}; it was {shown(value)}", type_only=True)
        try:
            items = list(listed(value))
        except Misfit:
            raise
        except Exception as error:
            raise Misfit(f"must be {wanted} that can be read; it raised {type(error).__name__}") from error
        if shape is not None:
            items = [_at(f"[{place}]", shape, item) for place, item in enumerate(items)]
        return items if type(value) is list else tuple(items)

    return fits


def _iterable(shape: Shape | None) -> Shape:
    """Return the shape of iterables: one that can be read twice is checked now, any other is not read."""
    listed_now = _collection(Collection, shape)

    def fits(value: Any) -> Any:
        if of_kind(value, list, tuple):
            return listed_now(value)
        if of_kind(value, str, bytes, bytearray, Mapping) or not of_kind(value, Iterable):
            raise Misfit(f"must be something to iterate over; it was {shown(value)}", type_only=True)
        return iter(value)

    return fits


def _row(inner: tuple[Any, ...]) -> Shape:
    items = _collection(tuple, None)
    shapes = [shape_of(hint) for hint in inner]

    def fits(value: Any) -> Any:
        values = items(value)
        if len(values) != len(shapes):
            raise Misfit(f"must be a sequence of {len(shapes)}; it was one of {len(values)}")
        return tuple(
            item if shape is None else _at(f"[{place}]", shape, item)
            for place, (shape, item) in enumerate(zip(shapes, values, strict=True))
        )

    return fits


def _at(place: str, shape: Shape, item: Any) -> Any:
    try:
        return shape(item)
    except Misfit as misfit:
        misfit.place = place + misfit.place
        misfit.type_only = False
        raise


def _instance(cls: type) -> Shape:
    if getattr(cls, "_is_protocol", False):
        return _protocol(cls)
    if issubclass(cls, Enum) and issubclass(cls, str):
        return _one_of([member.value for member in cls], cls)
    if _is_typed_dict(cls):
        return _kind(dict, _named(cls))
    return _kind(cls, _named(cls))


def _is_typed_dict(cls: type) -> bool:
    """Return whether nothing can be an instance of the class: it describes mappings, by `typing_extensions`, too."""
    return hasattr(cls, "__required_keys__")


def _special(cls: type) -> bool:
    return cls is types.NoneType or getattr(cls, "_is_protocol", False) or issubclass(cls, Enum) or _is_typed_dict(cls)


def _kind(cls: Any, wanted: str) -> Shape:
    kinds = cls if isinstance(cls, tuple) else (cls,)

    def fits(value: Any) -> Any:
        if not of_kind(value, *kinds):
            raise Misfit(f"must be {wanted}; it was {shown(value)}", type_only=True)
        if missing := _missing_fields(value):
            raise Misfit(f"must be {wanted}; it was one that was never made: it has no {missing[0]}")
        return value

    return fits


def _missing_fields(value: Any) -> list[str]:
    """Return the fields that a value has not: something made it past its class."""
    return [name for name in getattr(type(value), "__dataclass_fields__", ()) if not hasattr(value, name)]


def _protocol(cls: type) -> Shape:
    members = sorted(
        {
            name
            for base in cls.__mro__
            if base is not object and base.__module__ != "typing"
            for name in (*vars(base), *vars(base).get("__annotations__", ()))
            if not name.startswith("_")
        }
    )
    shapes = _shapes_of_properties(cls)

    def fits(value: Any) -> Any:
        if of_kind(value, type):
            raise Misfit(f"must be {_named(cls)}; it was {shown(value)}", type_only=True)
        lacking = [name for name in members if not _has(value, name)]
        if not lacking:
            for name, shape in shapes.items():
                _check_property(cls, name, shape, value)
            return value
        # An unrelated object may share one or two names with a large protocol.
        strange = 4 * len(lacking) > 3 * len(members)
        lack = "" if strange else f", which lacks {', '.join(lacking)}"
        raise Misfit(f"must be {_named(cls)}; it was {shown(value)}{lack}", type_only=strange)

    return fits


def _shapes_of_properties(cls: type) -> Mapping[str, Shape]:
    """Return what the properties of a protocol return, by name, as far as their hints say."""
    getters = {
        name: member.fget
        for base in cls.__mro__
        for name, member in vars(base).items()
        if isinstance(member, property) and member.fget is not None
    }
    hints = {name: typing.get_type_hints(getter, include_extras=True) for name, getter in getters.items()}
    shapes = {name: shape_of(hint["return"]) for name, hint in hints.items()}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _check_property(cls: type, name: str, shape: Shape, value: Any) -> None:
    try:
        shape(getattr(value, name))
    except Misfit as misfit:
        if misfit.unstorable:  # whoever stores it mends it
            return
        raise Misfit(f"must be {_named(cls)}, whose {name} {misfit.problem}") from None


def _has(value: Any, name: str) -> bool:
    try:
        return hasattr(value, name)
    except Exception:  # noqa: BLE001 - an attribute that raises counts as missing
        return False


def plain_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as plain JSON, a copy."""
    if not of_kind(value, Mapping):
        raise Misfit(f"must be a mapping with string keys; it was {shown(value)}", type_only=True)
    mapping: dict[str, Any] = plain(value)
    return mapping


def _texts(value: Any) -> dict[str, str]:
    return {name: _at(f"[{name!r}]", _text, inner) for name, inner in plain_object(value).items()}


def _text(value: Any) -> str:
    if not of_kind(value, str):
        raise Misfit(f"must be a string; it was {shown(value)}", type_only=True)
    return text(value)


def _whole(value: Any) -> int:
    if of_kind(value, bool) or not of_kind(value, int):
        raise Misfit(f"must be a whole number; it was {shown(value)}", type_only=True)
    number = int.__index__(value)
    if not -BIGGEST <= number < BIGGEST:
        raise Misfit(f"must be a whole number of 64 bits at most; it was {shown(number)}")
    return number


def _number(value: Any) -> float:
    if of_kind(value, bool) or not of_kind(value, int, float):
        raise Misfit(f"must be a number; it was {shown(value)}", type_only=True)
    if value != value:  # noqa: PLR0124 - what NaN is known by
        raise Misfit("must be a number; it was nan")
    return value if of_kind(value, float) else _whole(value)


def _callable(value: Any) -> Any:
    if not callable(value):
        raise Misfit(f"must be callable; it was {shown(value)}", type_only=True)
    return value


_SCALARS: Final[Mapping[Any, Shape | None]] = {
    Any: None,
    object: None,
    str: _text,
    bool: _kind(bool, "True or False"),
    int: _whole,
    float: _number,
    bytes: _kind(bytes, "bytes"),
    Callable: _callable,
}

_NAMES: Final[Mapping[Any, str]] = {str: "a string", int: "a whole number", float: "a number", bool: "True or False"}


def _named(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _named(get_args(hint)[0])
    if hint in _NAMES:
        return _NAMES[hint]
    if hint is types.NoneType:
        return "None"
    origin = get_origin(hint)
    if origin is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if origin is typing.get_origin(Callable[..., Any]):
        return "a function"
    named = str(getattr(origin or hint, "__name__", hint))
    return f"{'an' if named[0] in 'AEIOU' else 'a'} {named}"
