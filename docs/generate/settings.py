"""The fields of a class of settings, read off the class."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from generate.docstrings import Declared, declared_fields
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


def fields(name: str) -> str:
    """Return a table of the fields of a class, which is named as in `turnwise.Settings`."""
    owner = pkgutil.resolve_name(name)
    declared = dict(declared_fields(owner))
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


def _default(field: dataclasses.Field[Any], declared: Declared) -> str:
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
