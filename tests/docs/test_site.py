"""The site builds strictly, every link of it leads somewhere, and it holds every page and every public name."""

from __future__ import annotations

import html
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnwise
from turnwise import client, diagrams, service, states, testing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
MODULES = (turnwise, states, diagrams, service, client, testing)
TARGET = re.compile(r'\s(?:href|src)="([^"]*)"')
NAMED = re.compile(r'\sid="([^"]*)"')

pytestmark = pytest.mark.timeout(600)  # six seconds of work, of which the machine may give little


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that the builder reads."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "zensical.toml").write_text((ROOT / "zensical.toml").read_text())
    (folder / "src").symlink_to(ROOT / "src")
    subprocess.run([sys.executable, DOCS / "stage.py", folder / "build" / "pages"], check=True)
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Path:
    code, said = build(folder)
    assert code == 0, said
    assert "No issues found" in said
    return folder / "build" / "site"


def build(folder: Path) -> tuple[int, str]:
    """Build the site of a folder, and return the exit code, and what the builder said, without colours."""
    command: list[str | Path] = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def listed(nav: object) -> Iterator[str]:
    """Yield the pages of a navigation, from top to bottom."""
    match nav:
        case str():
            yield nav
        case dict():
            for below in nav.values():
                yield from listed(below)
        case list():
            for below in nav:
                yield from listed(below)


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def test_every_page_is_in_the_navigation_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(listed(nav)) == PAGES


def test_the_reference_tells_of_every_public_name_once() -> None:
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    told = [name for page in pages for name in re.findall(r"^::: (.+)$", page, re.MULTILINE)]
    meant = [id(pkgutil.resolve_name(name)) for name in told]
    public = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    assert [name for name, found in public.items() if meant.count(id(found)) != 1] == []


def test_the_reference_has_every_class_of_turnwise_that_a_page_names_or_imports() -> None:
    """What is not there may change with any version, and nobody would learn where it is imported from."""
    told = {
        name.rpartition(".")[2] for page in PAGES for name in re.findall(r"^::: (.+)$", text_of(page), re.MULTILINE)
    }
    package = [file for link in (ROOT / "src/turnwise").iterdir() for file in [link, *link.resolve().rglob("*.py")]]
    code = [file.read_text() for file in package if file.suffix == ".py"]
    classes = {name for text in code for name in re.findall(r"^class ([A-Z]\w+)", text, re.MULTILINE)}
    pages = [page for page in PAGES if not page.startswith(("decisions/", "machine/", "words.md"))]
    named = {
        (name, page)
        for page in pages
        for line in re.findall(r"`[A-Z]\w+|^ *from turnwise.*import .*", text_of(page), re.MULTILINE)
        for name in re.findall(r"[A-Z]\w+", line)
    }
    theirs = {("Runner", "guides/from-openai-agents.md"), ("Request", "guides/compaction.md")}
    assert sorted((name, page) for name, page in named - theirs if name in classes - told) == []


def test_every_link_of_every_page_leads_somewhere(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    names = {page: set(NAMED.findall(text)) for page, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for link in {html.unescape(link) for link in TARGET.findall(text)}:
            path, _, anchor = link.partition("#")
            if re.match(r"(https?|mailto|data):", link):
                continue
            goal = (page.parent / path).resolve() if path else page
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists() or (anchor and goal in names and anchor not in names[goal]):
                dead.append((page.relative_to(site).as_posix(), link))
    assert dead == []
    assert len(pages) > len(PAGES)


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Who reads the documentation tells nobody of it, and needs no network."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]*)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="([^"]*)"', text)
        assert [link for link in loaded if link.startswith(("http", "//"))] == [], page


def test_planted_faults_break_the_build_and_are_shown(tmp_path: Path) -> None:
    settings = (ROOT / "zensical.toml").read_text()
    (tmp_path / "zensical.toml").write_text(
        re.sub(r"^nav = \[\n.*?^\]\n", "", settings, flags=re.MULTILINE | re.DOTALL)
    )
    (tmp_path / "src").symlink_to(ROOT / "src")
    pages = tmp_path / "build" / "pages"
    pages.mkdir(parents=True)
    (pages / "index.md").write_text("# Home\n\n[a page](gone.md), [a heading](words.md#gone)\n")
    (pages / "words.md").write_text("# Words\n")
    code, said = build(tmp_path)
    assert code == 1
    assert "[a page](gone.md)" in said
    assert "anchor does not exist" in said
