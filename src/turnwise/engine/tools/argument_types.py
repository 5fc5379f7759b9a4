"""The types of a function's parameters, as pydantic sees them: a check of arguments, and their schema.

It is imported with the first tool that is declared by type hints: pydantic takes long to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from typing_extensions import TypedDict

from turnwise.foreign import guarded

Adapter = pydantic.TypeAdapter[dict[str, Any]]
"""Reads the arguments of a function, and spells them."""


class _Schema(GenerateJsonSchema):
    """Makes schemas without warnings; a default that JSON cannot spell is left out."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {  # type: ignore[misc]
        "skipped-choice",
        "non-serializable-default",
    }


def with_default(hint: Any, default: Any) -> Any:
    """Return the type of a parameter that has a default."""
    return Annotated[hint, default if isinstance(default, FieldInfo) else pydantic.Field(default=default)]


def adapter_of(name: str, fields: Mapping[str, Any]) -> tuple[Adapter, dict[str, Any]]:
    """Return what reads the arguments of the tool `name`, and their JSON schema; `fields` are types by parameter."""
    make: Any = TypedDict  # and no model: its keys are data, so that a parameter may have any name
    shape = make(f"{name}_arguments", dict(fields))
    shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    with guarded():
        adapter: Adapter = pydantic.TypeAdapter(shape)
        return adapter, adapter.json_schema(schema_generator=_Schema)
