"""The statements of both stores by name, from files of SQL.

What both databases understand stands in `sql/statements/`, each statement between its name and a semicolon:

    -- name: head
    SELECT version, head FROM chats WHERE id = :chat_id;

Where the dialects differ, the name is followed by the one that it is for: `-- name: events in sqlite`. What one store
alone needs stands in its own folder, in `statements/changes.sql`. What several statements have in common follows
`-- part: new_events`, and stands for `{new_events}` in the statements after it.

Some differences are spelled alike, as PostgreSQL spells them: a parameter is `:name`, which PostgreSQL gets as `$1`, a
list that is a parameter is asked by `= ANY (:names)`, which SQLite gets as JSON, and text is found by `strpos`. SQLite
gets no `FOR UPDATE` and `FOR SHARE`: its one writer has locked everything.

`{queried: NAME = :NAME}` is repeated, with commas between, for each field by which chats are found; `NAME` stands for
its name and `TYPE` for its type in PostgreSQL.

Chats have a number by which the rows of other tables name them: `{chat}` is that of the parameter `:chat_id`.

A statement is sent with its name and comments, so that a server's views and logs show which one it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pkgutil import get_data
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args

from turnwise.states.facts import QUERIED

Dialect = Literal["sqlite", "postgres"]

_SHARED: Final = ("reads", "lists", "raw_rows", "files", "pruning", "changes", "budgets")
_HEAD: Final = re.compile(r"-- (name|part): (\w+)(?: in (sqlite|postgres))?\n")
_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
"""`:chat_ids`, but no cast: `::text`."""
_CHAT: Final = "(SELECT number FROM chats WHERE id = :chat_id)"
_AFTER: Final = """coalesce((
    SELECT number FROM (SELECT id, number FROM chats UNION ALL SELECT id, number FROM tombstones) AS known
    WHERE id = :after), 0)"""
_QUERIED: Final = re.compile(r"{queried: ([^}]*)}")
_TYPES: Final[Mapping[Any, str]] = {str: "text", int: "bigint", bool: "boolean"}
_LIST: Final = re.compile(r"= ANY \((:\w+)\)")
_LOCK: Final = re.compile(r" FOR (UPDATE|SHARE)\b")


class Statement(NamedTuple):
    """A statement as a database wants it."""

    sql: str
    parameters: tuple[str, ...]
    """The names of the parameters, in the order of their numbers."""


class _Statements(dict[str, Statement]):
    def __missing__(self, name: str) -> Statement:
        raise LookupError(f"there is no statement {name!r}; there are {', '.join(self)}")


@cache
def statements_in(dialect: Dialect) -> Mapping[str, Statement]:
    """Return all statements in a dialect: those that both stores share, and those of its own store.

    Raises:
        ValueError: a file is not written as the head of this module says.
    """
    files = [f"sql/statements/{name}.sql" for name in _SHARED] + [f"{dialect}/statements/changes.sql"]
    return parsed("".join((get_data("turnwise.persistence", file) or b"").decode() for file in files), dialect)


def parsed(text: str, dialect: Dialect) -> Mapping[str, Statement]:
    """Return the statements that a text holds in a dialect.

    Raises:
        ValueError: it is not written as the head of this module says.
    """
    statements, parts = _Statements(), dict[str, str]()
    for statement in re.split(r"^(?=-- (?:name|part):)", text, flags=re.MULTILINE)[1:]:
        head, sql = _HEAD.match(statement), statement.rstrip()
        if head is None or not sql.endswith(";"):
            raise ValueError(f"a statement has no name, or no semicolon at its end:\n{statement}")
        kind, name, only_in = head.groups()
        if only_in not in (None, dialect):
            continue
        if name in statements or name in parts:
            raise ValueError(f"there are two statements of that name:\n{statement}")
        if kind == "part":
            parts[name] = sql[head.end() : -1]
            continue
        for part, text_of_part in parts.items():
            sql = sql.replace(f"{{{part}}}", text_of_part)
        statements[name] = translated(sql[:-1], dialect)
    return statements


@lru_cache(maxsize=512)
def translated(sql: str, dialect: Dialect) -> Statement:
    """Return a statement in a dialect: one that is put together from names of tables and columns, or from a file."""
    sql = _QUERIED.sub(_expand_columns, sql.replace("{chat}", _CHAT).replace("{number_of_after}", _AFTER))
    parameters = tuple(dict.fromkeys(_PARAMETER.findall(sql)))
    if dialect == "sqlite":
        sql = _LOCK.sub("", _LIST.sub(r"IN (SELECT value FROM json_each(\1))", sql)).replace("strpos(", "instr(")
        return Statement(sql, parameters)
    return Statement(_PARAMETER.sub(lambda name: f"${parameters.index(name[1]) + 1}", sql), parameters)


def _expand_columns(template: re.Match[str]) -> str:
    each = []
    for name, hint in QUERIED.items():
        kind = next(kind for kind in get_args(hint) or (hint,) if kind is not NoneType)
        each.append(template[1].replace("NAME", name).replace("TYPE", _TYPES[kind]))
    return ", ".join(each)
