"""The generated parts of the reference, by the name that a page asks for: `<!-- generated: commands -->`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from generate.cli import commands, variables
from generate.figures import growth
from generate.http import problems, routes, schemas
from generate.settings import fields

GENERATORS: Final[Mapping[str, Callable[..., str]]] = {
    "commands": commands,
    "variables": variables,
    "problems": problems,
    "routes": routes,
    "schemas": schemas,
    "fields": fields,
    "growth": growth,
}
"""Each returns Markdown. What a page writes after the name are the arguments: `<!-- generated: fields Settings -->`."""
