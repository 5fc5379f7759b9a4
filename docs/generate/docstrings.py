"""What a class says of its fields."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import zip_longest
from typing import NamedTuple

from turnwise.engine.chats.chats import COMMANDS


class Declared(NamedTuple):
    """A field as its class spells it."""

    annotation: str
    default: str
    meaning: str


def declared_fields(owner: type) -> Iterator[tuple[str, Declared]]:
    """Yield the fields that a class declares itself, each with the text below it."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    body = found.body if isinstance(found, ast.ClassDef) else []
    for one, after in zip_longest(body, body[1:]):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            meaning = inspect.cleandoc(_text(after))
            default = ast.unparse(one.value) if one.value is not None else ""
            yield one.target.id, Declared(ast.unparse(one.annotation), default, meaning)


def _text(statement: ast.stmt | None) -> str:
    """Return a statement that is nothing but a text; nothing for any other."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


@cache
def meanings(name: str) -> Mapping[str, str]:
    """Return what turnwise says of the fields of a type of the OpenAPI document.

    That is the text below each field of the class of that name, or, for the body of a command, its method's arguments.
    """
    command = COMMANDS.get(re.sub("(?<!^)(?=[A-Z])", "_", name.removesuffix("Body")).lower())
    if command is not None and name.endswith("Body"):
        return dict(_arguments(inspect.getdoc(command.function) or ""))
    found: dict[str, str] = {}
    for owner in _classes().get(_class_name(name), ()):
        for one in reversed(owner.__mro__):
            if one.__module__.startswith("turnwise"):
                found |= {field: declared.meaning for field, declared in declared_fields(one) if declared.meaning}
    return found


def _class_name(name: str) -> str:
    """Return a class's name: a type of the document may begin with its module, and ends with a generic's argument."""
    own = name.rpartition("__")[2] if name.startswith("turnwise__") else name
    return re.sub(r"_\w+_$", "", own)


def _arguments(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the arguments that a docstring explains in Google's style."""
    section = docstring.partition("\nArgs:\n")[2].partition("\n\n")[0]
    for found in re.finditer(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", section, re.MULTILINE | re.DOTALL):
        text = " ".join(found[2].split())
        yield found[1], text[:1].upper() + text[1:]


@cache
def _classes() -> Mapping[str, list[type]]:
    classes: dict[str, list[type]] = {}
    for name, module in sorted(sys.modules.items()):
        for one in vars(module).values() if name.startswith("turnwise") else ():
            if isinstance(one, type) and one.__module__ == name and one not in classes.setdefault(one.__name__, []):
                classes[one.__name__].append(one)
    return classes
