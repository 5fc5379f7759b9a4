"""The site builds strictly, its links work, and it holds every page and every public name."""

import dataclasses
import html
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import turnwise
from support.served import referred_to
from turnwise import Engine, client, diagrams, importers, service, states, testing
from turnwise.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
SETTINGS = (
    turnwise.Settings,
    turnwise.RetryPolicy,
    turnwise.CompactionPolicy,
    service.ServiceSettings,
    client.ClientSettings,
)
MODULES = (turnwise, states, diagrams, service, client, importers, testing)
TARGET = re.compile(r'\s(?:href|src)="([^"]*)"')
NAMED = re.compile(r'\sid="([^"]*)"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files that the builder reads."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "zensical.toml").write_text((ROOT / "zensical.toml").read_text())
    (folder / "src").symlink_to(ROOT / "src")
    subprocess.run([sys.executable, DOCS / "stage.py", folder / "build" / "pages"], check=True)
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Path:
    code, output = build(folder)
    assert code == 0, output
    assert "No issues found" in output
    return folder / "build" / "site"


def build(folder: Path) -> tuple[int, str]:
    """Build the site of a folder; return the exit code and the builder's output without colours."""
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


def test_navigation_has_every_page_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(listed(nav)) == PAGES


def test_manual_is_short() -> None:
    """No written page exceeds 1,500 words, and all of them together 35,000, as `wc -w` counts."""
    pages = [page for page in PAGES if not page.startswith("reference/") and page != "machine/matrix.md"]
    words = {page: len((DOCS / page).read_text(encoding="utf-8").split()) for page in pages}
    assert {page: count for page, count in words.items() if count > 1_500} == {}
    assert sum(words.values()) <= 35_000


def test_reference_has_every_public_name_once() -> None:
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    reported = [name for page in pages for name in re.findall(r"^::: (.+)$", page, re.MULTILINE)]
    meant = [id(pkgutil.resolve_name(name)) for name in reported]
    public = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    assert [name for name, found in public.items() if meant.count(id(found)) != 1] == []


def test_every_generated_part_is_written(folder: Path) -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in (folder / "build" / "pages").rglob("*.md")}
    assert [name for name, text in pages.items() if re.search(r"^<!-- generated", text, re.MULTILINE)] == []
    assert "| 1,000,000 chats |" in pages["scaling.md"]


def test_reference_has_every_command_and_option(folder: Path) -> None:
    page = staged(folder, "cli.md")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    program: Any = typer.main.get_command(app)
    missing = [
        (name, option)
        for name, command in program.commands.items()
        for parameter in command.params
        for option in ([parameter.envvar or "--", *parameter.opts] if parameter.param_type_name == "option" else ())
        if option not in sections.get(name, "")
    ]
    assert missing == []


def test_reference_has_every_route_and_type(folder: Path) -> None:
    page = staged(folder, "http.md")
    auth = service.StaticTokens({"t": service.Principal("ops", "operator")})
    document = service.create_app(Engine("sqlite://", model="demo"), auth=auth).openapi()
    routes = [f"### `{verb.upper()} {path}`" for path, ways in document["paths"].items() for verb in ways]
    types = [f"### `{name}`" for name in document["components"]["schemas"]]
    assert [heading for heading in [*routes, *types] if page.count(f"{heading} ") != 1] == []
    links = set(re.findall(r"\]\(#(schema-[^)]*)\)", page))
    assert links <= set(re.findall(r"\{#([^}]*)\}", page))


def test_reference_explains_every_field_and_parameter(folder: Path) -> None:
    """All of turnwise's own: AG-UI documents its own fields."""
    auth = service.StaticTokens({"t": service.Principal("ops", "operator")})
    schemas = service.create_app(Engine("sqlite://", model="demo"), auth=auth).openapi()["components"]["schemas"]
    agui, found = set[str](), {"RunAgentInput"}
    while found - agui:
        agui |= found
        found = {name for one in agui for name in referred_to(schemas[one])}
    _, *sections = re.split(r"^### `(.+?)`", staged(folder, "http.md"), flags=re.MULTILINE)
    texts = zip(sections[::2], sections[1::2], strict=True)
    rows = [(name, row) for name, text in texts if name not in agui for row in text.splitlines()]
    assert [(name, row) for name, row in rows if re.search(r"\|\s*\|$", row)] == []


def test_reference_says_who_may_use_a_route(folder: Path) -> None:
    sections = staged(folder, "http.md").split("\n### ")
    texts = {key: next(one for one in sections if f"{{#{key}}}" in one) for key in ("erase", "explain", "is_alive")}
    assert "For operators." in texts["erase"]
    assert "For owners, auditors and operators." in texts["explain"]
    assert "Open: it needs no token." in texts["is_alive"]


@pytest.mark.parametrize("owner", SETTINGS, ids=lambda owner: owner.__name__)
def test_reference_explains_every_setting(owner: type, folder: Path) -> None:
    page = staged(folder, "settings.md")
    section = page.partition(f".{owner.__name__}\n")[2].partition("\n::: ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))
    empty = [
        field.name
        for field in dataclasses.fields(owner)
        if field.init and not all(re.split(r" (?<!\\)\| ", rows.get(field.name, "")))
    ]
    assert empty == []


def test_reference_has_every_environment_variable(folder: Path) -> None:
    sources = [module.read_text(encoding="utf-8") for module in (ROOT / "src").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'"(TURNWISE_[A-Z_]+)"', text)}
    assert read
    assert read <= set(re.findall(r"`(TURNWISE_[A-Z_]+)`", staged(folder, "settings.md")))


def staged(folder: Path, page: str) -> str:
    return (folder / "build" / "pages" / "reference" / page).read_text(encoding="utf-8")


@pytest.mark.deep
def test_site_has_no_dead_links(site: Path) -> None:
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
