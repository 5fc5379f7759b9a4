"""What holds of every example: it is short, it says what it is, it needs nothing but turnwise, and people find it."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest
from tests.examples.examples import EXAMPLES

ROOT = EXAMPLES.parent
MOST = 149
ALL = sorted(EXAMPLES.glob("*.py"))


def name_of(example: Path) -> str:
    return example.stem


def imported_by(example: Path) -> set[str]:
    """Return the packages that an example imports, anywhere."""
    found = set()
    for node in ast.walk(ast.parse(example.read_text())):
        match node:
            case ast.Import():
                found |= {alias.name.partition(".")[0] for alias in node.names}
            case ast.ImportFrom(module=str(module)):
                found.add(module.partition(".")[0])
    return found - sys.stdlib_module_names


def test_there_are_the_examples_that_the_tests_run() -> None:
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert {name_of(example) for example in ALL} - {"readme"} == tested - {"every_example", "verify_log"}


@pytest.mark.parametrize("example", ALL, ids=name_of)
def test_an_example_is_shorter_than_150_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= MOST


@pytest.mark.parametrize("example", ALL, ids=name_of)
def test_an_example_needs_only_what_make_demo_installs(example: Path) -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert imported_by(example) <= {"turnwise", *(line.partition(">")[0] for line in required)}


@pytest.mark.parametrize("example", ALL, ids=name_of)
def test_an_example_is_linked_to(example: Path) -> None:
    for page in ("README.md", "docs/index.md"):
        assert f"examples/{example.name})" in (ROOT / page).read_text()


@pytest.mark.parametrize("example", [example for example in ALL if example.stem != "readme"], ids=name_of)
def test_an_example_says_what_it_is(example: Path) -> None:
    said = ast.get_docstring(ast.parse(example.read_text()))
    assert said is not None
    assert "\n\n" in said, "what it shows, then how to run it"
