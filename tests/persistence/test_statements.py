"""SQL longer than a line stands in files: what these hold, how they are read, and that none is anywhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from turnwise.persistence.postgres import commits
from turnwise.persistence.postgres.write_rows import PARAMETERS
from turnwise.persistence.statements import parsed, statements_of

STORES: Final = [Path(__file__).parents[2] / "persistence" / store for store in ("sqlite", "postgres")]
FILES: Final = [file for store in STORES for file in sorted((store / "statements").iterdir())]
MODULES: Final = [module for store in STORES for module in sorted(store.glob("*.py"))]
SQL: Final = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|WHERE|ORDER BY|VALUES)\b.*\S")


def long_sql_in(source: str) -> set[int]:
    """Return the lines where a text that holds SQL begins and does not end."""
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr))
    long = [node for node in texts if node not in docstrings and node.end_lineno != node.lineno]
    return {node.lineno for node in long if SQL.search(ast.get_source_segment(source, node) or "")}


def used_in(module: Path) -> set[str]:
    """Return patterns of the names of statements that a module asks for."""
    named = re.findall(r"_SQL\[f?[\"']([\w{}]+)[\"']\]", module.read_text(encoding="utf-8"))
    return {re.sub(r"\{\w+\}", r"\\w+", name) for name in named}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: f"{module.parent.name}/{module.stem}")
def test_sql_that_is_longer_than_a_line_stands_in_a_file(module: Path) -> None:
    assert long_sql_in(module.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    "source",
    [
        'A = """\nSELECT 1\n"""',
        'f(\n    "SELECT a FROM b"\n    " WHERE c"\n)',
        'A = {"b": f"""\n    INSERT INTO {b}\n    VALUES (1)"""}',
        'A = """UPDATE a\nSET b = 1"""',
    ],
)
def test_a_planted_statement_of_two_lines_is_found(source: str) -> None:
    assert len(long_sql_in(source)) == 1


def test_a_statement_of_one_line_is_none_of_them_nor_is_a_docstring_or_another_text() -> None:
    source = 'def f():\n    """Do it.\n\n    SELECT 1\n    """\n    a("SELECT 1")\n    b("turned\\n"\n    "over")'
    assert long_sql_in(source) == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.parent.name}/{file.stem}")
def test_every_statement_is_asked_for_by_its_module_and_no_other_is(file: Path) -> None:
    store = file.parent.parent
    known = {*statements_of(f"turnwise.persistence.{store.name}.{file.stem}")}
    used = used_in(store / f"{file.stem}.py")
    assert {name for name in known if not any(re.fullmatch(one, name) for one in used)} == set()
    assert {one for one in used if not any(re.fullmatch(one, name) for name in known)} == set()


def test_a_statement_reaches_from_its_name_to_its_semicolon() -> None:
    statements = parsed("-- Of all.\n\n-- name: one\n-- Why.\nSELECT 1;\n\n-- name: two\nSELECT ';'\n  , 2;\n", "a.sql")
    assert statements == {"one": "-- name: one\n-- Why.\nSELECT 1", "two": "-- name: two\nSELECT ';'\n  , 2"}


def test_parameters_are_numbered_in_the_order_in_which_they_are_named() -> None:
    head = "-- name: one(b,\n--     a_ids)\n"
    sql = parsed(f"{head}SELECT :a_ids::text[] WHERE :b = ANY (:a_ids) AND c::text = '';", "a.sql")["one"]
    assert sql.removeprefix(head) == "SELECT $2::text[] WHERE $1 = ANY ($2) AND c::text = ''"


def test_the_rows_of_a_commit_are_given_in_the_order_of_its_parameters() -> None:
    head = commits._SQL["commit"].partition("(")[2].partition(")")[0]
    assert re.findall(r"\w+", head) == [*PARAMETERS]


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
def test_a_file_that_is_written_otherwise_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parsed(text, "a.sql")


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(LookupError, match="no statement 'tow'; there are one, two"):
        parsed("-- name: one\nSELECT 1;\n-- name: two\nSELECT 2;", "a.sql")["tow"]
