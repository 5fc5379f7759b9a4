"""Checks the arguments of public functions by their type hints, before they do anything."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial, wraps
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec

from turnwise.states.errors import InvalidArgument, InvalidContent, WrongCall
from turnwise.states.plain import Misfit
from turnwise.states.shapes import Shape, shape_of

_T = TypeVar("_T")
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def checked(target: _T) -> _T:
    """Check a function's arguments at every call, or those of a class at every call of its public methods.

    A dataclass is checked only when one is made, and not when it is read from a store: it was checked before.

    Raises:
        InvalidArgument: an argument is not what its type hint says. Nothing was done.
        InvalidContent: it is of that type, but cannot be stored.
        WrongCall: an argument is missing, or the function has none of that name.
    """
    return checked_within("")(target)


def checked_within(place: str) -> Callable[[_T], _T]:
    """Return `checked`, with `place` put before the names of arguments in errors."""
    return partial(_checked, place)


def _checked(within: str, target: _T) -> _T:
    if not isinstance(target, type):
        return cast("_T", _checked_function(target, within))
    public = () if dataclasses.is_dataclass(target) else [name for name in vars(target) if not name.startswith("_")]
    for name in ("__init__", *public):
        member = vars(target)[name]
        if isinstance(member, classmethod):
            setattr(target, name, classmethod(_checked_function(member.__func__, within)))
        elif inspect.isfunction(member):
            setattr(target, name, _checked_function(member, within))
    return cast("_T", target)


def fit(argument: str, shape: Shape | None, value: Any) -> Any:
    """Return an argument in the form in which it is used.

    Raises:
        InvalidArgument: it does not have the shape.
        InvalidContent: it has the shape, but cannot be stored.
    """
    if shape is None:
        return value
    try:
        return shape(value)
    except Misfit as misfit:
        place = argument + misfit.place
        if misfit.unstorable:
            raise InvalidContent(f"{place}: {misfit.problem}", argument=place) from None
        raise InvalidArgument(place, misfit.problem) from None
    except Exception as error:
        raise InvalidArgument(argument, f"could not be looked at: it raised {type(error).__name__}") from error


def no_such_argument(called: str, name: str, names: Iterable[str]) -> str:
    """Return what is wrong with an argument that what is called does not have, and which was meant."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a wrong call needs it

    there = sorted(names)
    near = get_close_matches(str(name), there, 1)
    instead = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(there)}"
    return f"{called} has no such argument; {instead}"


def _checked_function(function: Any, within: str) -> Any:
    parameters = _Parameters(function, within)

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


class _Form(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that a function accepts. `missing` and `names` go by the number of positional arguments."""

    places: tuple[tuple[str, Shape | None], ...]
    shapes: Mapping[str, Shape | None]
    missing: tuple[frozenset[str], ...]
    """By number of positional arguments: the names that must be given."""
    names: tuple[frozenset[str], ...]
    """By number of positional arguments: the names that may be given."""
    others: bool
    """Whether any name may be given."""

    def matches(self, count: int, names: Mapping[str, Any]) -> bool:
        """Return whether `count` positional arguments and these named ones make a valid call."""
        return (
            count < len(self.names)
            and self.missing[count] <= names.keys()
            and (self.others or names.keys() <= self.names[count])
        )


class _Parameters:
    """The parameters of a function. Resolved at the first call, when every name in the type hints exists."""

    def __init__(self, function: Callable[..., Any], within: str) -> None:
        self._function = function
        self._within = within

    def fit(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments in the form in which they are used."""
        form = self._form
        if not form.matches(len(args), options):
            raise self._wrong_call(len(args), options)
        within = self._within
        return (
            [fit(within + name, shape, value) for (name, shape), value in zip(form.places, args, strict=False)],
            {name: fit(within + name, form.shapes.get(name), value) for name, value in options.items()},
        )

    @cached_property
    def _form(self) -> _Form:
        hints = get_type_hints(self._function, include_extras=True)
        every = inspect.signature(self._function).parameters.values()
        fixed = [one for one in every if one.kind not in _VARIABLE]
        shapes = {one.name: shape_of(hints.get(one.name, Any)) for one in fixed}
        places = [one.name for one in fixed if one.kind is not one.KEYWORD_ONLY]
        by_place = [frozenset(places[:count]) for count in range(len(places) + 1)]
        required = frozenset(one.name for one in fixed if one.default is one.empty)
        named = frozenset(one.name for one in fixed if one.kind is not one.POSITIONAL_ONLY)
        return _Form(
            places=tuple((name, shapes[name]) for name in places),
            shapes=shapes,
            missing=tuple(required - names for names in by_place),
            names=tuple(named - names for names in by_place),
            others=len(fixed) < len(every),
        )

    def _wrong_call(self, count: int, options: Mapping[str, Any]) -> WrongCall:
        """Return the error of a call that Python itself would refuse."""
        form, called = self._form, self._function.__qualname__.removesuffix(".__init__")
        if count >= len(form.names):
            places = [name for name, _ in form.places if name not in ("self", "cls")]  # which nobody has typed
            given = count - len(form.places) + len(places)
            last = places[-1] if places else called
            return WrongCall(self._within + last, f"{called} takes {len(places)} arguments by place, not {given}")
        for name in options:
            if name not in form.names[count] and not form.others:
                twice = name in form.shapes
                problem = "was given by place, too" if twice else no_such_argument(called, name, form.names[count])
                return WrongCall(self._within + str(name), problem)
        missing = sorted(form.missing[count] - options.keys())
        return WrongCall(self._within + missing[0], f"{called} needs it")
