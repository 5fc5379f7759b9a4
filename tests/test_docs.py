"""README and docs are true: their examples run, their links work, their commands exist."""

import ast
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from itertools import dropwhile, takewhile
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import typer

from turnwise.cli.app import app

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXAMPLE = ROOT / "examples" / "readme.py"
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *GUIDES]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def examples_of(page: Path) -> list[CodeType]:
    """Return the python blocks of a page, compiled so that a traceback names the line of the page."""
    text = page.read_text()
    blocks = []
    for block in FENCED.finditer(text):
        if block[1] == "python":
            lines_before = text[: block.start(2)].count("\n")
            code = "\n" * lines_before + block[2]
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            blocks.append(compile(code, str(page), "exec", flags=flags, dont_inherit=True))
    return blocks


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    prose = FENCED.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


SLOW = {
    "testing.md",
    "models.md",
    "tools-that-act-once.md",
    "from-pydantic-ai.md",
    "tools.md",
    "service.md",
}
"""Pages whose examples take seconds: they import other libraries, start processes, or run many worlds."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.deep] * (page.name in SLOW))
        for page in GUIDES
        if page.parent.name != "tutorials" and examples_of(page)  # those have tests of their own
    ],
    ids=name_of,
)
async def test_examples_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for example in examples_of(page):
        running = eval(example, names)  # noqa: S307 - our own pages
        if inspect.isawaitable(running):
            await running


@pytest.mark.deep
def test_store_conformance_example_runs_alone(tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/testing.md").read_text()
    (example,) = [block[2] for block in FENCED.finditer(guide) if "(StoreConformance)" in block[2]]
    (tmp_path / "test_store.py").write_text(example)
    alone = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "-k", "a_step_is_compacted_once"]
    done = subprocess.run([*alone, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout


def test_readme_shows_the_shipped_example() -> None:
    assert [block[2] for block in FENCED.finditer(README.read_text()) if block[1] == "python"] == [EXAMPLE.read_text()]


def test_readme_example_runs(tmp_path: Path) -> None:
    shutil.copy(README, tmp_path)
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "read_file says: “# turnwise" in done.stdout
    assert done.stdout.endswith("Verdict(ok=True)\n")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_no_dead_links(page: Path) -> None:
    dead = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_make_targets_exist(page: Path) -> None:
    named = set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def command_lines_of(page: Path) -> list[list[str]]:
    """Return the arguments of `turnwise` in the console blocks of a page."""
    blocks = [block[2] for block in FENCED.finditer(page.read_text()) if block[1] == "console"]
    typed = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    found = []
    for line in typed:
        words = list(dropwhile(lambda word: re.match(r"\w+=", word), shlex.split(line, comments=True)))
        if words[0] == "turnwise":
            found.append(list(takewhile(lambda word: word not in {"|", "&&", ">", "<", "&"}, words[1:])))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines_of(page)], ids=name_of)
def test_command_lines_of_a_page_are_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program itself parses its options and arguments, and runs nothing."""
    monkeypatch.chdir(tmp_path)
    program: Any = typer.main.get_command(app)
    for words in command_lines_of(page):
        with program.make_context("turnwise", [*words]) as context:
            name, command, rest = program.resolve_command(context, words)
            assert command is not None
            with command.make_context(name, rest, parent=context):
                pass
