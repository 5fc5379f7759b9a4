"""Type hints of public functions as pydantic validates them: strictly, and only values that can be stored."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from functools import cache
from math import inf, isnan
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainValidator,
    SkipValidation,
    Strict,
    TypeAdapter,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, ValidationError, core_schema
from typing_extensions import get_protocol_members, is_protocol, is_typeddict

from turnwise.states.values.plain import BIGGEST, Misfit, plain_object, shown, text

Validator = Callable[[Any], Any]
"""Returns the value in the form in which it is used, or raises `Misfit`."""


def validator_of(hint: Any) -> Validator:
    """Return what validates a value by a type hint, and raises `Misfit`. It is built when it is first called."""
    adapter = cache(lambda: adapter_of(hint).validator.validate_python)

    def validated(value: Any) -> Any:
        try:
            return adapter()(value)
        except ValidationError as error:
            raise misfit_of(error.errors(include_url=False), value) from None

    return validated


def adapter_of(hint: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type hint of a public function."""
    return TypeAdapter(strict(hint), config=ConfigDict(strict=True))


class _Instance:
    """In `Annotated`: an instance of the class, as it is; `wanted` is what an error calls it."""

    def __init__(self, cls: type, wanted: str) -> None:
        self._cls = cls
        self._wanted = wanted

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(self._cls, cls_repr=self._wanted)


_Text = Annotated[str, AfterValidator(text)]
_NOTHING: Final = Annotated[Any, _Instance(types.NoneType, "None")]
"""pydantic's errors of unions leave out that `None` is allowed."""
_SCALARS: Final[Mapping[Any, Any]] = {
    Any: Any,
    object: Any,
    None: _NOTHING,
    str: _Text,
    bool: bool,
    int: Annotated[int, Field(ge=-BIGGEST, le=BIGGEST - 1)],
    float: Annotated[float, Field(ge=-inf)],  # which NaN is not
    bytes: bytes,
    Decimal: Annotated[Decimal, Field(allow_inf_nan=False)],
    types.NoneType: _NOTHING,
    Callable: Callable[..., Any],
}


def strict(hint: Any) -> Any:  # noqa: PLR0911 - one return per kind of hint
    """Return a type hint of a public function or configuration as pydantic is to validate it."""
    origin = get_origin(hint)
    if origin is Annotated:
        base, *extra = get_args(hint)
        if _marked(SkipValidation, extra):
            return Any
        if _marked(InstanceOf, extra):
            return _instance(base)
        found = [one for one in extra if isinstance(one, AfterValidator | FieldInfo)]
        limits = [one for one in found if getattr(one, "discriminator", None) is None]  # the rest is for stored JSON
        return Annotated[strict(base), *limits] if limits else strict(base)
    if origin is Literal:
        return hint
    if origin in (Union, types.UnionType):
        return Union[tuple(map(strict, get_args(hint)))]  # noqa: UP007 - of any number
    if origin is not None:
        return _generic(origin, get_args(hint))
    if hint in _SCALARS:
        return _SCALARS[hint]
    return _class(hint) if isinstance(hint, type) else Any


def _marked(marker: Any, extra: Iterable[Any]) -> bool:
    return any(one is marker or isinstance(one, marker) for one in extra)


def _generic(origin: Any, inner: tuple[Any, ...]) -> Any:
    if origin is get_origin(Callable[..., Any]):
        return Callable[..., Any]
    if issubclass(origin, Mapping):
        if inner == (str, str):
            return Annotated[dict[_Text, _Text], Strict(strict=False)]
        return Annotated[Any, PlainValidator(plain_object)]
    if issubclass(origin, tuple) and Ellipsis not in inner:
        return Annotated[tuple[tuple(map(strict, inner))], Strict(strict=False)]  # type: ignore[misc]
    if issubclass(origin, Collection):
        return Annotated[tuple[strict(inner[0]), ...], Strict(strict=False)]  # type: ignore[misc]
    return _class(origin)


def _class(cls: type) -> Any:
    if is_protocol(cls):
        return Annotated[Any, AfterValidator(_member_check(cls))]
    if issubclass(cls, Enum) and issubclass(cls, str):
        return Annotated[cls, Strict(strict=False), BeforeValidator(_word_check(cls))]
    return _instance(dict if is_typeddict(cls) else cls)


def _instance(cls: type) -> Any:
    stands_for_nothing = issubclass(cls, Enum) and len(cls) == 1
    return Annotated[Any, _Instance(cls, "" if stands_for_nothing else _named(cls))]


def _word_check(cls: type[Enum]) -> Validator:
    """Refuse what is no text before the enumeration does: its error would hold the whole value, however deep."""

    def fits(value: Any) -> Any:
        if isinstance(value, str):
            return value
        raise Misfit(f"must be one of {', '.join(repr(one.value) for one in cls)}; it was {shown(value)}")

    return fits


def _member_check(cls: type) -> Validator:
    members = sorted(get_protocol_members(cls))

    def fits(value: Any) -> Any:
        lacking = [name for name in members if isinstance(value, type) or not hasattr(value, name)]
        if lacking:
            # An unrelated object may share one or two names with a large protocol.
            strange = 4 * len(lacking) > 3 * len(members)
            lack = "" if strange else f", which lacks {', '.join(lacking)}"
            raise Misfit(f"must be {_named(cls)}; it was {shown(value)}{lack}", type_only=strange)
        return value

    return fits


def _named(cls: type) -> str:
    if cls in (str, bytes):
        return "a string" if cls is str else "bytes"
    return f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"


# Errors of pydantic in turnwise's words

_KINDS: Final[Mapping[str, str]] = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "True or False",
    "bytes_type": "bytes",
    "dict_type": "a mapping with string keys",
    "tuple_type": "a sequence",
    "callable_type": "a function",
    "is_instance_of": "{class}",
}
"""What a value of another kind would have to be, by pydantic's type of the error."""
_BOUNDS: Final[Mapping[str, str]] = {
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be finite",
    "too_short": "must hold {min_length} at least",
    "too_long": "must hold {max_length} at most",
}


def misfit_of(errors: Iterable[ErrorDetails], value: Any, *, depth: int = 0) -> Misfit:
    """Return the errors of one value as one: the innermost place where it is wrong, and what would be right there.

    The value itself stands `depth` steps inside of what was validated. A union has an error for each of its kinds:
    those about the type alone are joined into one.
    """
    placed = [(_steps(error["loc"][depth:], value), error) for error in errors]
    steps = max((steps for steps, _ in placed), key=len)
    found = [_misfit(error) for at, error in placed if at == steps]
    precise = [misfit for misfit in found if not misfit.type_only]
    misfit = precise[-1] if precise else _joined(found)
    misfit.place = "".join(f"[{step!r}]" for step in steps) + misfit.place
    misfit.type_only = misfit.type_only and not steps
    return misfit


def _steps(loc: tuple[int | str, ...], value: Any) -> list[int | str]:
    """Return the indices and keys of a place, without the names that pydantic gives the members of a union."""
    steps: list[int | str] = []
    for step in loc:
        if isinstance(step, int) or (isinstance(value, Mapping) and step in value):
            steps.append(step)
            with suppress(LookupError, TypeError):  # of a set, or of an item that is missing
                value = value[step]
    return steps


def _misfit(error: ErrorDetails) -> Misfit:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    was = f"; it was {shown(value)}"
    if isinstance(misfit := context.get("error"), Misfit):
        return misfit
    if kind == "string_unicode":
        return Misfit("must be well-formed text; it holds half a character (a lone surrogate)", unstorable=True)
    if kind == "missing":  # in a tuple
        return Misfit("must be given")
    if (isinstance(value, float) and isnan(value)) or (isinstance(value, Decimal) and value.is_nan()):
        return Misfit("must be a number; it was nan")
    if kind in _KINDS:
        return Misfit(f"must be {_KINDS[kind].format(**context)}{was}", type_only=True)
    if "expected" in context:
        context = {"expected": str(context["expected"]).replace(" or ", ", ")}
    whole = {name: int(bound) for name, bound in context.items() if isinstance(bound, float) and bound.is_integer()}
    bound = _BOUNDS[kind].format(**{**context, **whole}) if kind in _BOUNDS else error["msg"]
    return Misfit(bound + was)


def _joined(misfits: Iterable[Misfit]) -> Misfit:
    problems = [misfit.problem.removeprefix("must be ").partition("; it was ") for misfit in misfits]
    wanted = " or ".join(dict.fromkeys(one for one, _, _ in problems if one))
    return Misfit(f"must be {wanted}; it was {problems[0][2]}", type_only=True)
