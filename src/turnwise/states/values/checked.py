"""Checks the arguments of public functions by their type hints, before they do anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, wraps
from typing import Any, Final, Literal, TypeVar, cast, get_type_hints

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs, CoreConfig, ErrorDetails, SchemaValidator, ValidationError, core_schema
from typing_extensions import dataclass_transform

from turnwise.states.errors import InvalidArgument, InvalidContent, WrongCall
from turnwise.states.values.hints import Validator, adapter_of, misfit_of, strict
from turnwise.states.values.plain import Misfit

_T = TypeVar("_T")
_MODES: Final[Mapping[Any, Literal["positional_only", "positional_or_keyword", "keyword_only"]]] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional_only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional_or_keyword",
    inspect.Parameter.KEYWORD_ONLY: "keyword_only",
}
_PLACES: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WRONG_CALLS: Final = frozenset(
    {
        "missing",
        "missing_argument",
        "missing_keyword_only_argument",
        "missing_positional_only_argument",
        "multiple_argument_values",
        "unexpected_keyword_argument",
        "unexpected_positional_argument",
    }
)
"""pydantic's types of the errors of calls that Python itself would refuse."""


def checked(target: _T) -> _T:
    """Check a function's arguments at every call, or those of a class at every call of its public methods.

    Raises:
        InvalidArgument: an argument is not what its type hint says. Nothing was done.
        InvalidContent: it is of that type, but cannot be stored.
        WrongCall: an argument is missing, or the function has none of that name.
    """
    if not isinstance(target, type):
        return cast("_T", _checked_function(target))
    for name in ("__init__", *(name for name in vars(target) if not name.startswith("_"))):
        member = vars(target)[name]
        if isinstance(member, classmethod):
            setattr(target, name, classmethod(_checked_function(member.__func__)))
        elif inspect.isfunction(member):
            setattr(target, name, _checked_function(member))
    return cast("_T", target)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def configuration(*, within: str = "", kw_only: bool = True) -> Callable[[type[_T]], type[_T]]:
    """Declare a frozen dataclass of pydantic's that users make: its fields are checked by their type hints.

    Args:
        within: put before the names of fields in errors.
        kw_only: whether fields are given by name only.
    """

    def declare(cls: Any) -> Any:
        @model_validator(mode="wrap")  # type: ignore[misc]
        @classmethod
        def translated(_cls: Any, given: Any, validate: Callable[[Any], Any]) -> Any:
            try:
                return validate(given)
            except ValidationError as error:
                raise parameters.error_of(error, given.args, given.kwargs or {}) from None

        declared, hints = cls.__annotations__, get_type_hints(cls, include_extras=True)
        cls.__annotations__ = {name: strict(hints[name]) for name in declared}
        cls._translated = translated
        made: Any = dataclass(cls, frozen=True, slots=True, kw_only=kw_only, config=_CONFIG)
        made.__annotations__ = declared
        made.__init__.__wrapped__ = cls.__init__  # pydantic takes the signature from it
        parameters = Parameters(made, within)
        return made

    return declare


_CONFIG: Final = ConfigDict(strict=True, extra="forbid", defer_build=True)


def fit(argument: str, validator: Validator, value: Any) -> Any:
    """Return an argument in the form in which it is used.

    Raises:
        InvalidArgument: the validator refuses it.
        InvalidContent: it is of the right type, but cannot be stored.
    """
    try:
        return validator(value)
    except Misfit as misfit:
        raise error_of(argument, misfit) from None


def error_of(argument: str, misfit: Misfit) -> InvalidArgument:
    place = argument + misfit.place
    if misfit.unstorable:
        return InvalidContent(f"{place}: {misfit.problem}", argument=place)
    return InvalidArgument(place, misfit.problem)


def no_such_argument(called: str, name: str, names: Iterable[str]) -> str:
    """Return what is wrong with an argument that what is called does not have, and which was meant."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a wrong call needs it

    there = sorted(names)
    near = get_close_matches(str(name), there, 1)
    instead = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(there)}"
    return f"{called} has no such argument; {instead}"


def _checked_function(function: Any) -> Any:
    parameters = Parameters(function)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call(*args: Any, **options: Any) -> Any:
            args_fit, options_fit = parameters.fit(args, options)
            return await function(*args_fit, **options_fit)

    else:

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            args_fit, options_fit = parameters.fit(args, options)
            return function(*args_fit, **options_fit)

    return call


class Parameters:
    """The parameters of a function. Resolved at the first call, when every name in the type hints exists."""

    def __init__(self, function: Callable[..., Any], within: str = "") -> None:
        self._function = function
        self._within = within

    def fit(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments in the form in which they are used."""
        try:
            fit: tuple[Sequence[Any], Mapping[str, Any]] = self._validator.validate_python(ArgsKwargs(args, options))
        except ValidationError as error:
            raise self.error_of(error, args, options) from None
        return fit

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self._function).parameters

    @cached_property
    def _validator(self) -> SchemaValidator:
        hints = get_type_hints(self._function, include_extras=True)
        options: dict[str, Any] = {}
        arguments = []
        for name, one in self._parameters.items():
            if one.kind is one.VAR_POSITIONAL:
                options["var_args_schema"] = core_schema.any_schema()
            elif one.kind is one.VAR_KEYWORD:
                options["var_kwargs_schema"] = core_schema.any_schema()
            else:
                schema = adapter_of(hints.get(name, Any)).core_schema
                if one.default is not one.empty:
                    schema = core_schema.with_default_schema(schema, default=one.default)
                arguments.append(core_schema.arguments_parameter(name, schema, mode=_MODES[one.kind]))
        schema = core_schema.arguments_schema(arguments, **options)
        return SchemaValidator(schema, CoreConfig(strict=True))

    def error_of(self, refused: ValidationError, args: tuple[Any, ...], options: Mapping[str, Any]) -> InvalidArgument:
        """Return pydantic's error of a call as turnwise's."""
        errors = refused.errors(include_url=False)
        wrong_calls = [error for error in errors if error["type"] in _WRONG_CALLS and len(error["loc"]) == 1]
        if wrong_calls:
            return self._wrong_call(wrong_calls, len(args))
        root = errors[0]["loc"][0]
        name, value = ([*self._parameters][root], args[root]) if isinstance(root, int) else (root, options[root])
        own = [error for error in errors if error["loc"][0] == root]
        return error_of(self._within + name, misfit_of(own, value, depth=1))

    def _wrong_call(self, errors: Sequence[ErrorDetails], count: int) -> WrongCall:
        called = self._function.__qualname__.removesuffix(".__init__")
        by_kind = {error["type"]: error for error in reversed(errors)}
        places = [name for name, one in self._parameters.items() if one.kind in _PLACES]
        own = [name for name in places if name not in ("self", "cls")]
        if "unexpected_positional_argument" in by_kind:
            given = count - len(places) + len(own)
            place = own[-1] if own else called
            return WrongCall(self._within + place, f"{called} takes {len(own)} arguments by place, not {given}")
        for kind in ("multiple_argument_values", "unexpected_keyword_argument"):
            if kind in by_kind:
                name = str(by_kind[kind]["loc"][0])
                twice = kind == "multiple_argument_values"
                names = self._parameters.keys() - places[:count]
                problem = "was given by place, too" if twice else no_such_argument(called, name, names)
                return WrongCall(self._within + name, problem)
        missing = next(iter(by_kind.values()))["loc"][0]
        name = places[missing] if isinstance(missing, int) else missing
        return WrongCall(self._within + name, f"{called} needs it")
