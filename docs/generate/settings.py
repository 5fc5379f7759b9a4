"""The fields of a class of settings, read off the class."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, Final, NamedTuple, get_args

from generate.tables import code, table
from turnwise import Settings
from turnwise.states.names import AfterFinalStep

UNITS: Final = (
    ("_percent$", "percent"),
    ("_bytes$", "bytes"),
    ("_pixels$", "pixels"),
    ("_tokens$|^context_limit$", "tokens"),
    ("_cost$", "US dollars"),
    ("_per_second$", "requests a second"),
    ("_seconds$|_timeout$", "seconds"),
)
"""What numbers of these names count."""
KINDS: Final = (
    ("Seconds|Duration", "seconds"),
    ("AfterFinalStep", " or ".join(map(code, map(repr, get_args(AfterFinalStep))))),
    ("Callable|Restriction|ShouldCompact|CompactionStrategy", "function"),
    (r"\bbool\b|^RetryPolicy$|^CompactionPolicy$", ""),
    ("Mapping", "mapping"),
    ("Sequence|Collection", "list"),
    (r"\bstr\b|FairKey", "text"),
    (r"\bModel\b", "model"),
    ("Positive|Count|Amount", "number"),
)
"""What a field holds, by its annotation; the first that is found counts. Nothing where the default says it."""
LONG: Final = 60
MOST_LISTED: Final = 20


class _Declared(NamedTuple):
    """A field as its class spells it."""

    annotation: str
    default: str
    meaning: str


def fields(name: str) -> str:
    """Return a table of the fields of a class, which is named as in `turnwise.Settings`."""
    owner = pkgutil.resolve_name(name)
    declared = dict(_declared(owner))
    scoped = owner is Settings
    rows = []
    for field in dataclasses.fields(owner):
        if field.init:
            one = declared[field.name]
            unit = _unit(field.name, one.annotation)
            default = f"{_default(field, one)} ({unit})" if unit else _default(field, one)
            scope = [Settings.scope(field.name)] if scoped else []
            rows.append([code(field.name), default, *scope, one.meaning])
    return table(["field", "default (unit or values)", *(["scope"] if scoped else []), "meaning"], rows)


def _declared(owner: type) -> Iterator[tuple[str, _Declared]]:
    """Yield the fields of a class, each with the text below it."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    body = found.body if isinstance(found, ast.ClassDef) else []
    for one, after in zip_longest(body, body[1:]):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            meaning = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            default = ast.unparse(one.value) if one.value is not None else ""
            yield one.target.id, _Declared(ast.unparse(one.annotation), default, inspect.cleandoc(meaning))


def _default(field: dataclasses.Field[Any], declared: _Declared) -> str:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return f"`{type(made).__name__}()`" if not isinstance(made, Mapping) else "empty"
    if isinstance(field.default, frozenset) and len(field.default) <= MOST_LISTED:
        return ", ".join(map(code, sorted(field.default)))
    text = f"{field.default:_}" if type(field.default) is int else repr(field.default)
    return code(text if len(text) <= LONG else declared.default)


def _unit(name: str, annotation: str) -> str:
    if literal := re.search(r"Literal\[(.*?)\]", annotation):
        return " or ".join(map(code, literal[1].split(", ")))
    is_number = re.search("float|Positive|Count|Amount|Seconds|Duration", annotation) and "Mapping" not in annotation
    units = [unit for pattern, unit in UNITS if is_number and re.search(pattern, name)]
    kinds = [kind for pattern, kind in KINDS if re.search(pattern, annotation)]
    return next(iter([*units, *kinds]), code(annotation))
