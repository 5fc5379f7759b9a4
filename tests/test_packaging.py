"""What is built can be installed by someone who has nothing else, and holds what it must and no more."""

import email
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest
import readme_renderer.markdown

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]  # pip asks its index for the dependencies


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@dataclass
class Installed:
    """A fresh virtual environment that holds the wheel and what it depends on, and an empty folder to work in."""

    venv: Path
    cwd: Path

    def python(self, *arguments: str | Path) -> str:
        return run(self.cwd, self.venv / "bin" / "python", "-I", *arguments)

    def install(self, *wanted: str | Path) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.venv / "bin" / "python")
        run(self.cwd, *pip, "--quiet", "--disable-pip-version-check", "install", "--no-compile", *wanted)


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = Installed(tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("cwd"))
    run(place.cwd, sys.executable, "-m", "venv", "--without-pip", place.venv)
    place.install(*dist.glob("*.whl"))
    return place


def test_library_alone_brings_no_command_line(installed: Installed) -> None:
    """What an embedded engine depends on is all that comes; the script says what it needs."""
    script = (installed.venv / "bin" / "turnwise", "--version")
    refused = subprocess.run(script, cwd=installed.cwd, capture_output=True, text=True, check=False)
    assert (refused.returncode, "pip install 'turnwise[cli]'" in refused.stderr) == (2, True), refused
    code = "import importlib.metadata; print(*sorted(one.name for one in importlib.metadata.distributions()))"
    brought = set(installed.python("-c", code).split())
    assert not brought & {"typer", "rich", "prompt_toolkit", "click", "Pygments", "pytest"}


def run(cwd: Path, *command: str | Path) -> str:
    """Run a command and return what it said; an error shows all of it."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def shipped() -> set[str]:
    """Return the files that an installed turnwise must consist of."""
    files = {path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {path.relative_to(SOURCES).as_posix() for path in files} | {"turnwise/service/inspector/fold.js"}


def test_wheel_holds_exactly_the_files_of_the_library(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == shipped()
    expected = {*(".py", ".typed", ".sql", ".svg", ".mmd", ".json", ".jsonl"), *(".html", ".css", ".js")}
    assert {Path(name).suffix for name in names} == expected


def test_sdist_holds_tests_docs_and_examples(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "examples/readme.py", "docs/index.md", "tests/test_packaging.py"}
    assert wanted <= names
    shared = "turnwise/service/inspector/fold.js"
    assert {f"src/{name}" for name in shipped() - {shared}} | {"clients/typescript/fold.js"} <= names


@pytest.fixture(scope="module")
def metadata(dist: Path) -> Message:
    (wheel,) = dist.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_string(archive.read(name).decode())


def test_metadata_is_complete(metadata: Message) -> None:
    assert metadata["Name"] == "turnwise"
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier") or []
    assert {"Typing :: Typed", *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13))} <= {
        *classifiers
    }
    assert set(metadata.get_all("Provides-Extra") or []) >= {"postgres", "models", "mcp", "png", "client", "service"}


def test_readme_renders_on_a_package_index(metadata: Message) -> None:
    """As the index renders it: with no heading, table or example lost, and no link into a repository that it lacks."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = readme_renderer.markdown.render(str(metadata.get_payload()))
    assert re.findall(r'(?:href|src)="(?!https:|#)([^"]*)"', page) == []
    readme = (ROOT / "README.md").read_text()
    outside = re.sub(r"^```.*?^```$", "", readme, flags=re.MULTILINE | re.DOTALL)
    assert page.count("<h2") == len(re.findall(r"^## ", outside, re.MULTILINE))
    assert page.count("<table") == len(re.findall(r"^\| ---", outside, re.MULTILINE))
    assert "](" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)


def test_installed_package_is_typed(installed: Installed) -> None:
    """As a user's pyright sees it, which finds the types by `py.typed`: what is right passes, mistakes do not."""
    lines = ("from turnwise import Engine", "Engine('sqlite://', model='demo')", "Engine('sqlite://', modle='demo')")
    (installed.cwd / "user.py").write_text("\n".join(lines))
    command = (Path(sys.executable).with_name("basedpyright"), "--outputjson", "--level", "error")
    python = ("--pythonpath", installed.venv / "bin" / "python")
    done = subprocess.run(
        [*command, *python, "user.py"], cwd=installed.cwd, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [(one["range"]["start"]["line"], one["rule"]) for one in found] == [(2, "reportCallIssue")]


def test_demo_runs_when_installed(installed: Installed, dist: Path) -> None:
    """It reads and writes real files, and kills a process of its own: the wheel must hold all that it needs."""
    (wheel,) = dist.glob("*.whl")
    installed.install(f"{wheel}[cli]")
    said = run(installed.cwd, installed.venv / "bin" / "turnwise", "demo", "--fast")
    assert "a forged log is found out" in said
    assert {path.name for path in (installed.cwd / "demo-out").iterdir()} >= {"chats.db", "audit.jsonl", "machine.svg"}
