"""SQL that is longer than a line: named statements, those of a module in one file.

The statements of `sqlite/pruning.py` stand in `sqlite/statements/pruning.sql`, each between its name and a semicolon:

    -- name: next_chat
    -- The next chat that still has parts.
    SELECT chat_id FROM events WHERE kind = 'part' AND chat_id > ? ORDER BY chat_id LIMIT 1;

PostgreSQL numbers its parameters. There a name is followed by those of its statement, in the order in which they are
given: `-- name: bury(chat_id, head)` lets it say `:chat_id` and `:head` in place of `$1` and `$2`.

A statement is sent with its name and comments, so that a server's views and logs tell which one they show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pkgutil import get_data
from typing import Final

_HEAD: Final = re.compile(r"-- name: (\w+)(?:\(([^)]+)\))?\n")
_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
"""`:chat_ids`, but no cast: `::text`."""


class _Statements(dict[str, str]):
    """Statements by name."""

    def __missing__(self, name: str) -> str:
        raise LookupError(f"there is no statement {name!r}; there are {', '.join(self)}")


def statements_of(module: str) -> Mapping[str, str]:
    """Return the statements of a module by their names, given its `__name__`.

    Raises:
        ValueError: the file is not written as the head of this module says.
    """
    package, _, name = module.rpartition(".")
    file = f"statements/{name}.sql"
    return parsed((get_data(package, file) or b"").decode(), file)


def parsed(text: str, file: str) -> Mapping[str, str]:
    """Return the statements that a file holds.

    Raises:
        ValueError: it is not written as the head of this module says.
    """
    statements = _Statements()
    for statement in re.split(r"^(?=-- name:)", text, flags=re.MULTILINE)[1:]:
        head, sql = _HEAD.match(statement), statement.rstrip()
        if head is None or head[1] in statements or not sql.endswith(";"):
            raise ValueError(f"{file}: a statement has no name of its own, or no semicolon at its end:\n{statement}")
        statements[head[1]] = _numbered(sql[:-1], re.findall(r"\w+", head[2])) if head[2] else sql[:-1]
    return statements


def _numbered(sql: str, parameters: Sequence[str]) -> str:
    """Return a statement with a number for each of its parameters."""
    if {*_PARAMETER.findall(sql)} != {*parameters}:
        raise ValueError(f"its parameters are not those that its name is followed by:\n{sql}")
    return _PARAMETER.sub(lambda name: f"${parameters.index(name[1]) + 1}", sql)
