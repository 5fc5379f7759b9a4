"""SQL longer than a line stands in files: what these hold, how they are read, and that none is anywhere else."""

from __future__ import annotations

import re
from typing import Final

import pytest

from turnwise.persistence.statements import parsed

SQL: Final = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|WHERE|ORDER BY|VALUES)\b.*\S")


def test_parameters_are_numbered_in_declared_order() -> None:
    head = "-- name: one(b,\n--     a_ids)\n"
    sql = parsed(f"{head}SELECT :a_ids::text[] WHERE :b = ANY (:a_ids) AND c::text = '';", "a.sql")["one"]
    assert sql.removeprefix(head) == "SELECT $2::text[] WHERE $1 = ANY ($2) AND c::text = ''"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- name: one\nSELECT 1", "a.sql: a statement has no name of its own, or no semicolon"),
        ("-- name:\nSELECT 1;", "a.sql: a statement has no name of its own, or no semicolon"),
        ("-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;", "a.sql: a statement has no name of its own"),
        ("-- name: one(a)\nSELECT :b;", "parameters are not those"),
        ("-- name: one(a, b)\nSELECT :b;", "parameters are not those"),
    ],
)
def test_malformed_statement_file_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parsed(text, "a.sql")


def test_unknown_statement_lists_known_names() -> None:
    with pytest.raises(LookupError, match="no statement 'tow'; there are one, two"):
        parsed("-- name: one\nSELECT 1;\n-- name: two\nSELECT 2;", "a.sql")["tow"]
