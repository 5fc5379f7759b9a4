"""JSON schemas of the OpenAPI document as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from generate.docstrings import meanings
from generate.tables import code, table

REF: Final = "#/components/schemas/"
_FORMATS: Final = {"date-time": "time", "binary": "bytes"}
Schema = Mapping[str, Any]


def link(name: str) -> str:
    """Return a link to the section of a type."""
    return f"[`{label(name)}`](#{anchor(name)})"


def label(name: str) -> str:
    """Return a type's name without its module, which it has if two modules have types of one name."""
    return name.rpartition("__")[2] if "__" in name else name


def anchor(name: str) -> str:
    """Return the name under which the section of a type can be linked to."""
    return f"schema-{name.lower()}"


def section(name: str, schema: Schema) -> str:
    """Return the section of a type: what it is, and its fields."""
    parts = [f"### `{name}` {{#{anchor(name)}}}"]
    if "description" in schema:
        parts.append(schema["description"])
    if "properties" in schema:
        required = schema.get("required", ())
        said = meanings(re.sub("-(In|Out)put$", "", name))
        rows = [
            _row(field, one, required=field in required, meaning=said.get(field, ""))
            for field, one in schema["properties"].items()
        ]
        parts.append(table(("field", "type", "default", "meaning"), rows).rstrip() if rows else "It has no fields.")
    else:
        parts.append(f"{spelled(schema)}.")
    return "\n\n".join(parts)


def _row(name: str, schema: Schema, *, required: bool, meaning: str) -> list[str]:
    default = default_of(schema, required=required)
    constant = "Always this value." if "const" in schema else ""
    return [code(name), spelled(schema), default, schema.get("description", meaning) or constant]


def default_of(schema: Schema, *, required: bool) -> str:
    """Return the default of a field or parameter as JSON."""
    if required:
        return "required"
    return code(json.dumps(schema["default"])) if "default" in schema else ""


def spelled(schema: Schema) -> str:
    """Return what a schema allows, in words, with links to the types that it names."""
    if "$ref" in schema:
        return link(schema["$ref"].removeprefix(REF))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(code(json.dumps(one)) for one in values)
    if choices := [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]:
        return " or ".join(dict.fromkeys(map(spelled, choices)))
    return _of_type(schema, schema.get("type", "any JSON"))


def _of_type(schema: Schema, kind: str | list[str]) -> str:
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {spelled(schema['items'])}" if schema.get("items") else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {spelled(values)}" if isinstance(values, Mapping) and values else "object"
    return _FORMATS.get(schema.get("format", ""), kind)
