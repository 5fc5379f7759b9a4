"""Values: immutable and cheap to make. msgspec reads and writes their JSON, and pydantic takes them as its own."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from itertools import compress, repeat
from operator import is_not, ne
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, Union, get_args, get_origin

import msgspec
from msgspec.structs import asdict, replace
from pydantic import AwareDatetime, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from turnwise.states.errors import InvalidContent, WrongCall
from turnwise.states.values.checked import Parameters, no_such_argument
from turnwise.states.values.plain import COUNTABLE

if TYPE_CHECKING:
    from pydantic import JsonValue

    Json = JsonValue
    """Any JSON value, as the type of a field or an argument."""
else:
    Json = Any


class _DataclassFields:
    """The attribute by which `dataclasses`, FastAPI and others know dataclasses, made when it is read."""

    def __get__(self, _value: object, cls: type[Value]) -> dict[str, dataclasses.Field[Any]]:
        return _dataclass_fields_of(cls)


class Readable(msgspec.StructMeta):
    """The metaclass of values: msgspec learns how to read a kind of value when its class is made.

    Else it would learn that as it reads the first one, and a thread that reads one meanwhile would crash the process.
    """

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        inherited = any(base.__struct_config__.gc for base in bases if isinstance(base, msgspec.StructMeta))
        options.setdefault("gc", inherited or _may_join_a_cycle(name, namespace))
        return super().__new__(cls, name, bases, namespace, **options)

    def __init__(cls, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with suppress(NameError, TypeError):  # a kind that holds itself is read by its own module; others never are
            msgspec.json.Decoder(cls)


def _may_join_a_cycle(name: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a field of the class that is about to be made may hold what leads back to a value of it."""
    known = vars(sys.modules[namespace["__module__"]]) | {name: Value}
    try:
        hints = [
            eval(hint, known) if isinstance(hint, str) else hint  # noqa: S307 - annotations of our own
            for hint in namespace.get("__annotations__", {}).values()
        ]
    except (NameError, AttributeError, TypeError):  # such as of a name that is imported for type checkers only
        return True
    return not all(get_origin(hint) is ClassVar or _is_closed(hint, Value) for hint in hints)


class Value(msgspec.Struct, metaclass=Readable, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A value of turnwise's. Its JSON leaves out fields that have their default.

    The garbage collector looks at those kinds that hold a dict, a list or anything else that could lead back to them.
    """

    __dataclass_fields__ = _DataclassFields()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic validates the value, spells and describes it: field by field, with every default."""
        kind = _as_dataclass(cls)
        tag = cls.__struct_config__.tag_field

        def read(value: Any, fields_of: Any) -> Any:
            if isinstance(value, cls):
                return value
            return cls(**{name: field for name, field in vars(fields_of(value)).items() if name != tag})

        fields = handler.generate_schema(kind)
        spelled = core_schema.wrap_serializer_function_ser_schema(
            lambda value, spell: spell(kind(**asdict(value))), schema=fields
        )
        return core_schema.no_info_wrap_validator_function(read, fields, serialization=spelled)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return the value with these fields changed, as pydantic's models do."""
        return replace(copy.deepcopy(self) if deep else self, **(update or {}))

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return every field in a dictionary; the options are those of pydantic's models."""
        fields: dict[str, Any] = _adapter_of(type(self)).dump_python(self, **options)
        return fields

    def model_dump_json(self, **options: Any) -> str:
        """Return every field as JSON; the options are those of pydantic's models."""
        return _adapter_of(type(self)).dump_json(self, **options).decode()


@cache
def _dataclass_fields_of(cls: type[Value]) -> dict[str, dataclasses.Field[Any]]:
    fields = {field.name: copy.copy(field) for field in dataclasses.fields(_as_dataclass(cls))}
    tag = cls.__struct_config__.tag_field
    if tag is not None:
        fields[tag].init = False
    return fields


@cache
def _adapter_of(cls: type[Value]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


Time = Annotated[datetime, msgspec.Meta(tz=True), AwareDatetime]
"""A time with its zone, as turnwise stores each: no other can be compared with one of those."""


Counter = Annotated[int, msgspec.Meta(ge=0, lt=COUNTABLE)]
"""A number from which a chat counts on, or by which its rows are found. No other can be read: it would have no next
one, or let the chat do more than a limit says."""


class Checked(Readable):
    """The metaclass of values that others make, too: a field of the wrong name or type raises an error of turnwise.

    What is read from a store, and what is made of a value with `replace`, goes past it: a store may hold fields of a
    newer version.
    """

    def __call__(cls, *by_place: Any, **fields: Any) -> Any:  # noqa: N805 - a class is what this is called on
        """Return the value that has these fields.

        Raises:
            WrongCall: one is missing, misspelt, or given by place.
            InvalidContent: one is of the wrong type.
        """
        if by_place:
            raise WrongCall(cls.__name__, "takes its fields by name")
        if not fields.keys() <= (names := _names_of(cls)):
            wrong = next(name for name in fields if name not in names)
            raise WrongCall(wrong, no_such_argument(cls.__name__, wrong, names))
        try:
            value = msgspec.convert(fields, cls)
            for name in _fields_of_values(cls):
                if name in fields:
                    _refuse_misspelt(fields[name], getattr(value, name), name)
        except WrongCall:
            raise
        except msgspec.ValidationError as error:
            for name, one in inspect.signature(cls).parameters.items():
                if one.default is one.empty and name not in fields:
                    raise WrongCall(name, f"{cls.__name__} needs it") from None
            place, problem = place_and_problem(error)
            raise InvalidContent(f"{cls.__name__}{place and '.' + place}: {problem}") from None
        except Exception as error:
            problem = f"a field cannot be read: that raised {type(error).__name__}"
            raise InvalidContent(f"{cls.__name__}: {problem}") from error
        return value

    def of(cls, **fields: Any) -> Any:  # noqa: N805 - a class is what this is called on
        """Return the value that has these fields, unchecked: turnwise has made each of them."""
        return super().__call__(**fields)


class CheckedCall(Readable):
    """The metaclass of values that others make by place, too: their arguments are checked as those of functions are.

    As with `Checked`, what is read from a store goes past it.
    """

    def __call__(cls, *args: Any, **options: Any) -> Any:  # noqa: N805 - a class is what this is called on
        """Return the value that has these fields.

        Raises:
            InvalidArgument: an argument is not what its type hint says.
            InvalidContent: it is of that type, but cannot be stored.
            WrongCall: an argument is missing, or there is none of that name.
        """
        args_fit, options_fit = _parameters_of(cls).fit(args, options)
        return super().__call__(*args_fit, **options_fit)


@cache
def _parameters_of(cls: Any) -> Parameters:
    return Parameters(cls)


def _refuse_misspelt(given: Any, made: Any, place: str) -> None:
    """Refuse what was given as a mapping and has a name that the value that was made of it does not have."""
    if given is made:
        return
    if isinstance(given, Mapping) and isinstance(made, Value):
        names = _names_of(type(made))
        for name, field in given.items():
            if name not in names:
                raise WrongCall(f"{place}.{name}", no_such_argument(type(made).__name__, name, names))
            _refuse_misspelt(field, getattr(made, name, None), f"{place}.{name}")
    elif isinstance(given, list | tuple) and isinstance(made, list | tuple):
        for number, (one, its) in enumerate(zip(given, made, strict=False)):
            _refuse_misspelt(one, its, f"{place}[{number}]")


@cache
def _fields_of_values(cls: type[Value]) -> tuple[str, ...]:
    return tuple(one.name for one in msgspec.structs.fields(cls) if _may_be_a_value(one.type))


def _may_be_a_value(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, Value)) or any(map(_may_be_a_value, get_args(hint)))


@cache
def _names_of(cls: type[Value]) -> frozenset[str]:
    """Return the names by which a kind of value may be given fields: its tag, too, where it has one."""
    tag = cls.__struct_config__.tag_field
    return frozenset(cls.__struct_fields__ if tag is None else (tag, *cls.__struct_fields__))


@cache
def _as_dataclass(cls: type[Value]) -> Any:
    """Return a dataclass with the fields of a kind of value: pydantic knows those."""
    tag = cls.__struct_config__
    fields: list[Any] = [(one.name, one.type, _default_of(one)) for one in msgspec.structs.fields(cls)]
    if tag.tag_field is not None:
        fields.insert(0, (tag.tag_field, Literal[tag.tag], dataclasses.field(default=tag.tag)))
    kind = dataclasses.make_dataclass(cls.__name__, fields, kw_only=True, namespace={"__doc__": cls.__doc__})
    kind.__module__ = cls.__module__  # part of a schema's name; make_dataclass's own depends on the Python version
    return kind


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    defaults = {"default": field.default, "default_factory": field.default_factory}
    return dataclasses.field(**{name: value for name, value in defaults.items() if value is not msgspec.NODEFAULT})


def fields_of(value: object) -> dict[str, Any]:
    """Return the fields of a value, its tag first: for serializers that do not know values.

    Raises:
        TypeError: it is no value of turnwise's.
    """
    if not isinstance(value, Value):
        raise TypeError(f"{type(value).__name__} objects are no JSON")
    tag = value.__struct_config__
    return asdict(value) if tag.tag_field is None else {tag.tag_field: tag.tag, **asdict(value)}


_CLOSED: Final = frozenset({type(None), bool, int, float, str, datetime, Decimal})
"""The kinds of most fields; nothing in them can be changed."""


def unshared(value: Any) -> Any:
    """Return a value with copies of all dicts and lists in it, for someone who may change them; itself, if it has none.

    Values and tuples cannot be changed, so only those around a copy are new. A kind of tuple that has a
    method of this name says itself what its copy is.
    """
    copied = _copier_of(type(value))  # type: ignore[arg-type]
    return value if copied is None else copied(value)


@cache
def _copier_of(kind: type) -> Callable[[Any], Any] | None:
    """Return what copies values of a kind; `None` if nothing in them can be changed."""
    if issubclass(kind, msgspec.Struct):
        names = _open_fields_of(kind) if issubclass(kind, Value) else kind.__struct_fields__
        return partial(_with_copies, names) if names else None
    if issubclass(kind, tuple):
        return getattr(kind, "unshared", None) or partial(_unshared_items, kind)
    if issubclass(kind, dict):
        return lambda value: {key: unshared(value[key]) for key in value}
    return (lambda value: [*map(unshared, value)]) if issubclass(kind, list) else None


def _unshared_items(kind: type[tuple[Any, ...]], value: tuple[Any, ...]) -> tuple[Any, ...]:
    items = [*map(unshared, value)]
    return kind(items) if any(map(is_not, items, value)) else value


def _with_copies(names: Iterable[str], value: Any) -> Any:
    copies: dict[str, Any] = {}
    for name in names:
        field = getattr(value, name)
        if type(field) not in _CLOSED and (copy := unshared(field)) is not field:
            copies[name] = copy
    return replace(value, **copies) if copies else value


@cache
def _open_fields_of(cls: type[Value]) -> tuple[str, ...]:
    """Return those fields of a kind of value that may hold a dict or a list."""
    return tuple(one.name for one in msgspec.structs.fields(cls) if not _is_closed(one.type, cls))


def _is_closed(hint: Any, within: type[Value]) -> bool:
    """Return whether nothing of that type, which stands in a kind of value, can be changed."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_closed(inside[0], within)
    if origin in (Union, UnionType, tuple):
        return all(one is Ellipsis or _is_closed(one, within) for one in inside)
    if origin is not None or not isinstance(hint, type):
        return origin is Literal
    if issubclass(hint, Value):
        return hint is within or not _open_fields_of(hint)
    return hint in _CLOSED or issubclass(hint, Enum)


def changed_fields(value: Value, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the fields of a value that differ from their defaults: what is digested of it, and stored of facts."""
    defaults = _defaults_of(type(value), without)
    fields = [*map(getattr, repeat(value), defaults)]
    # Without a loop of Python's: it is done of every row that is written.
    return dict(compress(zip(defaults, fields, strict=True), map(ne, fields, defaults.values())))


@cache
def _defaults_of(cls: type[Value], without: frozenset[str]) -> dict[str, Any]:
    """Return the defaults of a kind of value by field, in their order; `NODEFAULT` for a field that has none."""
    return {
        one.name: one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
        for one in msgspec.structs.fields(cls)
        if one.name not in without
    }


_WITH_VALUE: Final = ("Invalid enum value", "Invalid value")
"""What msgspec says of values, before it says them."""


def place_and_problem(error: msgspec.MsgspecError) -> tuple[str, str]:
    """Return where something is wrong, and what: without the wrong value, which may be confidential."""
    before, at, place = str(error).rpartition(" - at `")
    problem = before if at else place
    return (
        place.rpartition("$")[2].strip(".`") if at else "",
        next((beginning for beginning in _WITH_VALUE if problem.startswith(beginning)), problem),
    )
