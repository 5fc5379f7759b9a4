"""What the README and the docs say is so: their examples run, their links lead somewhere, their commands exist."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import dropwhile, takewhile
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import typer

from turnwise import Engine, Settings, service
from turnwise.cli.app import app
from turnwise.engine.worker import helper_calls, titles
from turnwise.persistence.postgres import liveness, pool
from turnwise.persistence.sqlite import connection
from turnwise.states import facts

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXAMPLE = ROOT / "examples" / "readme.py"
GUIDES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *GUIDES]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


FIGURES = [
    ("postgresql.md", r"tried on another, for up to (\S+) s", pool.PATIENCE),
    ("postgresql.md", r"opening waits up to (\S+) s", pool.PATIENCE),
    ("postgresql.md", r"After (\S+) s it raises `StoreError`, and a running chat waits on", pool.PATIENCE),
    ("postgresql.md", r"ends its leases (a) second later", liveness.GRACE),
    ("postgresql.md", r"looks for such sessions after (\S+) s", liveness.SETTLED),
    ("postgresql.md", r"nor in the first (\S+) s of one", liveness.SETTLED),
    ("postgresql.md", r"nor in the first (\S+) s of the server", liveness.SETTLED),
    ("postgresql.md", r"the leases run out after (\S+) s", Settings().lease),
    ("deploying.md", r"on SQLite for (\S+) seconds", connection.PATIENCE),
    ("guides/logging.md", r"this one waits for it, for (\S+) s", connection.PATIENCE),
    ("durability.md", r"once (\S+) went with its attempts", facts.MOST_LOST),
    ("guides/helpers.md", r"At most (\S+) helpers of a chat may be unheard", helper_calls.UNHEARD),
    ("guides/titles.md", r"A model call for a title may take (\S+) seconds", titles.TIMEOUT),
    ("guides/titles.md", r"is tried again, (\S+) times in all", titles.ATTEMPTS),
    ("guides/titles.md", r"as long as it waits no more than (\S+) seconds", titles.LONGEST_DELAY),
]
"""Where a page says how long or how often, and what the code says. Most other tests change it, or take it as it is."""
WORDS = {"a": 1, "three": 3}


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
    """Return the names under which the headings of a page can be linked to."""
    prose = FENCED.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in GUIDES if examples_of(page)], ids=name_of)
async def test_the_examples_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for example in examples_of(page):
        running = eval(example, names)  # noqa: S307 - our own pages
        if inspect.isawaitable(running):
            await running


def imports_of(page: Path) -> set[str]:
    """Return the modules that a page's examples import, but turnwise's and those of Python."""
    examples = [ast.parse(block[2]) for block in FENCED.finditer(page.read_text()) if block[1] == "python"]
    nodes = [node for example in examples for node in ast.walk(example)]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    own = {"turnwise", *sys.stdlib_module_names}
    return {module for module in modules if module.partition(".")[0] not in own}


def packages_of(module: str) -> set[str]:
    """Return the packages that bring a module: several may share its first name."""
    path, names = module.replace(".", "/"), set(metadata.packages_distributions()[module.partition(".")[0]])
    if len(names) > 1:
        places = {f"{path}.py", f"{path}/__init__.py"}
        names = {name for name in names if places & set(map(str, metadata.files(name) or ()))}
    return set(map(package_of, names))


def package_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


@pytest.mark.parametrize(
    "page", [page for page in GUIDES if imports_of(page) and not page.name.startswith("from-")], ids=name_of
)
def test_a_page_says_what_its_examples_need_to_be_installed(page: Path) -> None:
    """By an extra, or by the name of the package. Who comes from another library has that already."""
    text = page.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: set(map(package_of, needed)) for name, needed in project["optional-dependencies"].items()}
    named = [name for names in re.findall(r"(?:turnwise\[|extra `)([\w,]+)", text) for name in names.split(",")]
    said = set(re.findall(r"[\w.-]+", FENCED.sub("", text)))
    said = said.union(map(package_of, project["dependencies"]), *(extras[name] for name in named))
    unsaid = {module: packages for module in imports_of(page) if not (packages := packages_of(module)) & said}
    assert unsaid == {}


def test_the_test_of_a_store_runs_as_the_guide_has_it_without_any_configuration(tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/testing.md").read_text()
    (example,) = [block[2] for block in FENCED.finditer(guide) if "(StoreConformance)" in block[2]]
    (tmp_path / "test_store.py").write_text(example)
    alone = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "-k", "a_step_is_compacted_once"]
    done = subprocess.run([*alone, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout


async def test_the_program_that_serves_the_tools_of_an_mcp_server_is_as_the_guide_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Engine] = []
    takes = inspect.signature(service.serve)

    async def serve(*given: Any, **named: Any) -> None:
        asked = takes.bind(*given, **named).arguments
        served.append(asked["engine"])
        assert asked["auth"] is not None
        assert asked["sockets"][0].fileno() > 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNWISE_TOKEN", "a-token")
    monkeypatch.setattr(service, "serve", serve)
    monkeypatch.setattr(socket, "create_server", lambda _: socket.socket())
    names: dict[str, Any] = {}
    for example in examples_of(ROOT / "docs/guides/tools.md"):
        if {"SERVER", "main"} & {*example.co_names}:
            exec(example, names)  # noqa: S102 - our own page
    await names["main"]()
    assert [dict(engine.agents) for engine in served] == [{"default": frozenset({"num_double"})}]


def test_the_readme_shows_the_example_that_is_shipped() -> None:
    assert [block[2] for block in FENCED.finditer(README.read_text()) if block[1] == "python"] == [EXAMPLE.read_text()]


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    shutil.copy(README, tmp_path)
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "read_file says: “# turnwise" in done.stdout
    assert done.stdout.endswith("Verdict(ok=True, problem=None, position=None)\n")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
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
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?:^\$ |`)turnwise ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= {command.name for command in app.registered_commands}


def command_lines_of(page: Path) -> list[list[str]]:
    """Return what is typed after `turnwise` in the console blocks of a page."""
    blocks = [block[2] for block in FENCED.finditer(page.read_text()) if block[1] == "console"]
    typed = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    found = []
    for line in typed:
        words = list(dropwhile(lambda word: re.match(r"\w+=", word), shlex.split(line, comments=True)))
        if words[0] == "turnwise":
            found.append(list(takewhile(lambda word: word not in {"|", "&&", ">", "<", "&"}, words[1:])))
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines_of(page)], ids=name_of)
def test_every_command_line_of_a_page_can_be_typed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options and arguments are those of the program, which reads them and runs nothing."""
    monkeypatch.chdir(tmp_path)
    program: Any = typer.main.get_command(app)
    for words in command_lines_of(page):
        with program.make_context("turnwise", [*words]) as context:
            name, command, rest = program.resolve_command(context, words)
            assert command is not None
            with command.make_context(name, rest, parent=context):
                pass


def test_every_guide_and_decision_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert set(GUIDES) - {index} <= linked


@pytest.mark.parametrize(("page", "sentence", "figure"), FIGURES)
def test_a_figure_of_a_page_is_that_of_the_code(page: str, sentence: str, figure: float) -> None:
    text = re.sub(r"\s+", " ", (ROOT / "docs" / page).read_text())
    (said,) = re.findall(sentence, text)
    assert WORDS.get(said, said) in (figure, f"{figure:.0f}")
