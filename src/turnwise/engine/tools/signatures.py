"""Signatures: the parameters of a function that the model gives, with their schema and a check of the arguments."""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, ClassVar, Final

import msgspec
import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from typing_extensions import TypedDict

from turnwise.foreign import guarded
from turnwise.states.errors import SettingsError
from turnwise.states.values.plain import type_name

Function = Callable[..., Any]

_NAMELESS: Final = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
)
_ATOMS: Final = (str, int, float, bool, type(None))
_GOOGLE: Final = re.compile(r"^\s*(Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments):\s*$", re.MULTILINE)
_NUMPY: Final = re.compile(r"^\s*(Other )?Parameters\s*\n\s*-{3,}\s*$", re.MULTILINE)
_SPHINX: Final = re.compile(r"^\s*:(param|parameter|arg|argument|key|keyword)\s", re.MULTILINE)


class _Schema(GenerateJsonSchema):
    """Makes schemas without warnings; a default that JSON cannot spell is left out."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {  # type: ignore[misc]
        "skipped-choice",
        "non-serializable-default",
    }


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function that the model gives, by name."""

    adapter: pydantic.TypeAdapter[dict[str, Any]]
    schema: Mapping[str, Any]
    """JSON schema of the arguments: an object schema."""

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for the function, read as JSON: only then strict types take dates and the like."""
        with guarded():
            return self.adapter.validate_json(json.dumps(dict(arguments)))

    def spelled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as JSON, coerced to the function's types: "30" is 30 for a number.

        Reading them again gives the function the same values. An argument for which that is impossible, such as a
        secret, is returned unchanged. Nothing is added that the model did not send.
        """
        values = self.read(arguments)
        with guarded():
            dumped = self.adapter.dump_python(
                values, mode="json", by_alias=True, exclude_unset=True, serialize_as_any=True
            )
        result = dict(arguments)
        for name in result.keys() & dumped.keys():
            if type(dumped[name]) is type(result[name]) in _ATOMS and dumped[name] == result[name]:
                continue
            changed = {**result, name: dumped[name]}
            if self._means(changed, values):
                result = changed
        return result

    def _means(self, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        try:
            return self.read(arguments) == values
        except pydantic.ValidationError:
            return False


def context_parameter(function: Function, name: str, context: type) -> str | None:
    """Return the name of the parameter that is annotated with `context` or `context | None`, if there is one."""
    names = [
        parameter.name for parameter in _parameters(function, name) if _is_context(function, name, parameter, context)
    ]
    if len(names) > 1:
        raise SettingsError(
            f"tool {name!r}", f"parameters {', '.join(names)} are each a {context.__name__}; a tool has one at most"
        )
    return names[0] if names else None


def _is_context(function: Function, name: str, parameter: inspect.Parameter, context: type) -> bool:
    try:
        return _is(_hint(function, name, parameter), context)
    except SettingsError:
        if context.__name__ in str(parameter.annotation):
            raise
        return False  # with a schema=... its other hints may be unreadable


def check_names(function: Function, name: str) -> None:
    """Raise a `SettingsError` if a function wants an argument that cannot be given by name, as a model gives all."""
    for parameter in _parameters(function, name):
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise SettingsError(
                f"tool {name!r}",
                f"parameter {parameter.name!r} cannot be given by name; take the / out of its signature",
            )


def takes_any_name(function: Function, name: str) -> bool:
    """Whether a function takes arguments of any name, as `**arguments`."""
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in _parameters(function, name))


def signature_of(function: Function, name: str, *, without: str | None) -> Signature:
    """Return the signature of a function, from its type hints, its defaults and its docstring.

    Parameters that a `functools.partial` has filled in, and the parameter `without`, are left out.
    """
    fields = {
        parameter.name: _field(function, name, parameter)
        for parameter in _parameters(function, name)
        if parameter.name != without
    }
    described = _descriptions(function)
    adapter, schema = _checked_by_pydantic(name, fields)
    schema.pop("title", None)
    for known_as, property_ in schema.get("properties", {}).items():
        property_.pop("title", None)
        if known_as in described:
            property_.setdefault("description", described[known_as])
    return Signature(adapter, {"type": "object", "properties": {}, **schema})


def filled_in(function: Function) -> Collection[str]:
    """Return the names of the arguments that a `functools.partial` has filled in: they are not the model's."""
    return function.keywords.keys() if isinstance(function, functools.partial) else ()


def find_called(function: Function) -> Function:
    """Return the function that runs when a callable is called: inside a `partial`, a bound method or an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    called: Function = getattr(function, "__func__", function)
    return called


def find_described(function: Function) -> Function:
    """Return the function whose hints and docstring describe a callable: the one inside those that wrap it."""
    described: Function = inspect.unwrap(find_called(function))
    return described


def _parameters(function: Function, name: str) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise SettingsError(f"tool {name!r}", f"does not say what it takes ({error}); wrap it in a function") from error
    return [parameter for parameter in parameters if parameter.name not in filled_in(function)]


def _field(function: Function, name: str, parameter: inspect.Parameter) -> Any:
    if parameter.kind in _NAMELESS:
        raise SettingsError(f"tool {name!r}", f"parameter {parameter} can't be named in a schema; give schema=...")
    if parameter.annotation is parameter.empty:
        problem = f"parameter {parameter.name!r} has no type hint; add one, or give schema=..."
        if parameter.name == "self":
            problem = "is a method of a class: declare that of an object, as in tool(shop.look)"
        raise SettingsError(f"tool {name!r}", problem)
    hint, default = _hint(function, name, parameter), parameter.default
    if default is parameter.empty:
        return hint
    return Annotated[hint, default if isinstance(default, FieldInfo) else pydantic.Field(default=default)]


def _hint(function: Function, name: str, parameter: inspect.Parameter) -> Any:
    place = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(find_described(function), "__globals__", {})
    try:
        return typing.get_type_hints(place, globalns=names, include_extras=True)[parameter.name]
    except Exception as error:
        raise SettingsError(
            f"tool {name!r}",
            f"the type hint of parameter {parameter.name!r} cannot be read ({_first_line(error)}); import what it "
            f"names at run time, at the top of the module, or give schema=...",
        ) from error


def _is(hint: Any, context: type) -> bool:
    hint = getattr(hint, "__value__", hint)  # what a `type` statement names
    if typing.get_origin(hint) is Annotated:
        return _is(typing.get_args(hint)[0], context)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(_is(choice, context) for choice in typing.get_args(hint) if choice is not type(None))
    return hint is context or typing.get_origin(hint) is context


def _build_adapter(name: str, fields: Mapping[str, Any]) -> tuple[pydantic.TypeAdapter[dict[str, Any]], dict[str, Any]]:
    """Return the adapter of a tool's arguments, and their JSON schema; `fields` are types by parameter."""
    make: Any = TypedDict  # no model: a parameter may have any name
    shape = make(f"{name}_arguments", dict(fields))
    shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    with guarded():
        adapter = pydantic.TypeAdapter(shape)
        return adapter, adapter.json_schema(schema_generator=_Schema)


def _checked_by_pydantic(
    name: str, fields: Mapping[str, Any]
) -> tuple[pydantic.TypeAdapter[dict[str, Any]], dict[str, Any]]:
    for known_as, hint in fields.items():
        try:
            _build_adapter(name, {known_as: hint})
        except Exception as error:
            raise SettingsError(
                f"tool {name!r}",
                f"no schema can be made of the type of parameter {known_as!r} ({_first_line(error)}); "
                f"use a type that JSON can spell, or give schema=...",
            ) from error
    return _build_adapter(name, fields)


def _descriptions(function: Function) -> dict[str, str]:
    """Return the description of each parameter in a docstring of Google's, NumPy's or Sphinx's style."""
    doc = inspect.cleandoc(find_described(function).__doc__ or "")
    styles = {"google": _GOOGLE, "numpy": _NUMPY, "sphinx": _SPHINX}
    style: Any = next((style for style, pattern in styles.items() if pattern.search(doc)), None)
    if style is None:
        return {}
    import griffe  # noqa: PLC0415 - takes long to import, and many tools have nothing for it to read

    sections = griffe.Docstring(doc, parser=style, parser_options={"warnings": False}).parse()
    return {
        parameter.name.lstrip("*"): " ".join(parameter.description.split())
        for section in sections
        if isinstance(section, griffe.DocstringSectionParameters)
        for parameter in section.value
    }


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type_name(error)])[0]
