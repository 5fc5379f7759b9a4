"""The command line, read off the program: each command with its arguments and options, and the variables they read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer

from generate.tables import code, table
from turnwise.cli.app import app

PROGRAM: Final[Any] = typer.main.get_command(app)


def commands() -> str:
    """Return a section for each command, in the order of `turnwise --help`."""
    return "\n".join(map(_section, PROGRAM.commands, PROGRAM.commands.values(), app.registered_commands))


def _section(name: str, command: Any, registered: Any) -> str:
    with command.make_context(name, [], resilient_parsing=True) as context:
        usage = " ".join(["turnwise", name, *command.collect_usage_pieces(context)])
    annotations = inspect.signature(registered.callback, eval_str=True).parameters
    rows = [[_spelling(one, annotations[one.name].annotation), _default(one), _meaning(one)] for one in command.params]
    return f"## {name}\n\n```text\n{usage}\n```\n\n{command.help}\n\n" + table(
        ("argument or option", "default", "meaning"), rows
    )


def _spelling(parameter: Any, annotation: Any) -> str:
    if parameter.param_type_name == "argument":
        return code(parameter.metavar or parameter.name.upper())
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or _kind(annotation)}"
    return ", ".join(code(f"{one}{value}") for one in [*parameter.opts, *parameter.secondary_opts])


def _kind(annotation: Any) -> str:
    """Return what an option takes, by its annotation."""
    if get_origin(annotation) in {Annotated, Union, UnionType}:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(one.value) for one in annotation)
    return "NUMBER" if annotation in {int, float} else "TEXT"


def _meaning(parameter: Any) -> str:
    return f"{parameter.help or ''} Variable: `{parameter.envvar}`." if parameter.envvar else parameter.help or ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if getattr(parameter, "is_flag", False):
        return code(parameter.opts[0]) if default else ""
    return "" if default is None or default == () else code(getattr(default, "value", default))


def variables() -> str:
    """Return a table of the variables that options read."""
    read: dict[str, dict[str, None]] = {}
    for variable, option in _variables():
        read.setdefault(variable, {})[option] = None
    return table(("variable", "option"), ([code(one), ", ".join(map(code, read[one]))] for one in sorted(read)))


def _variables() -> Iterator[tuple[str, str]]:
    for command in PROGRAM.commands.values():
        for parameter in command.params:
            if parameter.envvar:
                yield parameter.envvar, parameter.opts[0]
