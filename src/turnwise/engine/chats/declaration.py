"""Declares a method of `Chats` as a command: its signature, docstring and route stand once, in its declaration."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property, wraps
from typing import Any, Final, Literal, TypeVar, get_origin, get_type_hints

import msgspec

from turnwise.states.values.checked import Parameters

F = TypeVar("F", bound=Callable[..., Any])
Verb = Literal["GET", "POST", "PATCH", "DELETE"]
HEADERS: Final[Mapping[str, str]] = {"client_id": "Idempotency-Key", "if_version": "If-Match"}
"""The parameters that headers of HTTP carry."""
_IN_PATH: Final = re.compile(r"{(\w+)}")


class Unchanged(Enum):
    """The type of `UNCHANGED`, which a call leaves as it is, where `None` says something."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


def changes_of(**fields: Any) -> dict[str, Any]:
    """Return the fields that a call changes: all that are not `UNCHANGED`."""
    return {name: value for name, value in fields.items() if value is not UNCHANGED}


class Command:
    """A declared method: an engine runs calls of it, a client sends them, a service takes them on its route."""

    def __init__(
        self,
        function: Callable[..., Any],
        verb: Verb | None,
        path: str,
        status: int,
        *,
        operation: str | None,
        repeatable: bool,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.verb = verb
        """The method of HTTP; `None` if the method has no route of its own."""
        self.path = path
        self.path_parameters = frozenset(_IN_PATH.findall(path))
        self.status = status
        self.operation = operation or self.name
        """The id of the operation in the OpenAPI document."""
        self.repeatable = repeatable
        """Whether the same call twice is the same as once, although it changes something."""
        self._checked = Parameters(function)

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters without `self`, by name."""
        _, *parameters = inspect.signature(self.function).parameters.values()
        return {one.name: one for one in parameters}

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The type hints of the parameters, with their bounds."""
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def result(self) -> Any:
        """The type of the result."""
        return get_type_hints(self.function)["return"]

    @property
    def is_read(self) -> bool:
        """Whether a call changes nothing."""
        return self.verb in ("GET", None)

    @property
    def fields(self) -> Sequence[str]:
        """The parameters that are neither in the path nor headers: those of the query or of the body."""
        return [name for name in self.parameters if name not in self.path_parameters and name not in HEADERS]

    @property
    def has_body(self) -> bool:
        """Whether the request has a body."""
        return not self.is_read and bool(self.fields)

    @property
    def is_paged(self) -> bool:
        """Whether a service gives the result a page at a time."""
        return get_origin(self.result) is list and "limit" not in self.parameters

    @property
    def doc(self) -> str:
        """The docstring without its sections."""
        text = inspect.cleandoc(self.function.__doc__ or "")
        return text.partition("\n\nArgs:")[0].partition("\n\nRaises:")[0]

    def call(self, *args: Any, **options: Any) -> CommandCall:
        """Return a call with its arguments checked.

        Args:
            args: the object whose method is called, and the positional arguments.
            options: the keyword arguments.

        Raises:
            InvalidArgument: an argument does not fit its type hint.
            WrongCall: an argument is missing, or there is none of that name.
        """
        places, named = self._checked.fit(args, options)
        arguments = {**named}
        arguments.update(zip(self.parameters, places[1:], strict=False))
        return CommandCall(self, arguments)


class CommandCall(msgspec.Struct, frozen=True):
    """A call of a command."""

    command: Command
    arguments: dict[str, Any]
    """Every argument by name, those that were left out with their defaults."""

    async def run(self, chats: Commanded) -> Any:
        """Make the call on an object, and return its answer."""
        return await chats._run(self)  # noqa: SLF001 - the call is how others reach it

    def follow(self, chats: Commanded) -> AsyncGenerator[Any, None]:
        """Make the call on an object, and return what it yields."""
        return chats._follow(self)  # noqa: SLF001 - as above


class Commanded(ABC):
    """An object with commands: it says how a call of one is run."""

    @abstractmethod
    async def _run(self, call: CommandCall) -> Any: ...

    @abstractmethod
    def _follow(self, call: CommandCall) -> AsyncGenerator[Any, None]: ...


def command(
    verb: Verb | None = None,
    path: str = "",
    status: int = 200,
    *,
    operation: str | None = None,
    repeatable: bool = False,
) -> Callable[[F], F]:
    """Declare a method, whose body is empty, as a command. Calls are checked by the type hints, then run.

    Args:
        verb: the method of HTTP; without one the method has no route of its own.
        path: of the route; parameters in it are arguments. `client_id` and `if_version` are headers, the rest is the
            body, or the query of a GET.
        status: of a good answer.
        operation: the id of the operation; the name of the method by default.
        repeatable: whether the same call twice is the same as once, although it changes something.
    """

    def declare(function: F) -> F:
        declared = Command(function, verb, path, status, operation=operation, repeatable=repeatable)
        method: Any
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def method(self: Commanded, *args: Any, **options: Any) -> Any:
                return await self._run(declared.call(self, *args, **options))

        else:

            @wraps(function)
            def method(self: Commanded, *args: Any, **options: Any) -> Any:
                return self._follow(declared.call(self, *args, **options))

        method.command = declared
        same: F = method
        return same

    return declare


def commands_of(declaring: type) -> dict[str, Command]:
    """Return the commands that a class declares, by name."""
    members = ((name, getattr(declaring, name)) for name in dir(declaring))
    return {name: member.command for name, member in members if hasattr(member, "command")}
