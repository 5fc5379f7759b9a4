"""What is built can be installed by someone who has nothing else, and holds what it must and no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "turnwise"
FOLDERS = sorted(link.name for link in PACKAGE.iterdir() if link.is_symlink())
BESIDE = {"__init__.py", "__main__.py", "logger.py", "py.typed"}
"""The files that stand beside the folders."""

pytestmark = pytest.mark.timeout(600)  # pip asks its index for the dependencies


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


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = Installed(tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("cwd"))
    run(place.cwd, sys.executable, "-m", "venv", "--without-pip", place.venv)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        place.venv / "bin" / "python",
        "--quiet",
        "--disable-pip-version-check",
    )
    run(place.cwd, *pip, "install", "--no-compile", *dist.glob("*.whl"))
    return place


def run(cwd: Path, *command: str | Path) -> str:
    """Run a command and return what it said; an error shows all of it."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def shipped() -> set[str]:
    """Return the files that an installed turnwise must consist of, judged by the folders of the repository."""
    files = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()}
    names = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    return {f"turnwise/{name}" for name in names} | {f"turnwise/{name}" for name in BESIDE}


def test_the_wheel_holds_every_file_of_the_library_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == shipped()
    assert {Path(name).suffix for name in names} == {
        *(".py", ".typed", ".sql", ".svg", ".mmd", ".jsonl"),
        *(".html", ".css", ".js"),
    }


def test_the_sdist_holds_the_tests_the_docs_and_the_examples_too(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "examples/readme.py", "docs/index.md", "tests/test_packaging.py"}
    assert wanted <= names
    assert {name.removeprefix("turnwise/") for name in shipped()} - names == BESIDE


def test_it_is_imported_from_where_it_was_installed(installed: Installed) -> None:
    where = installed.python("-c", "import turnwise.testing, turnwise.diagrams; print(turnwise.__file__)")
    assert Path(where.strip()).is_relative_to(installed.venv)


def test_the_example_of_the_readme_runs_there(installed: Installed) -> None:
    shutil.copy(ROOT / "README.md", installed.cwd)
    assert "Verdict(ok=True" in installed.python(ROOT / "examples" / "readme.py")


def test_the_drawings_it_came_with_are_current(installed: Installed) -> None:
    assert "drawings are what the declared table says" in installed.python("-m", "turnwise.diagrams", "--check")


def test_the_module_is_the_program(installed: Installed) -> None:
    assert installed.python("-m", "turnwise", "--version").startswith("turnwise 0.")


def test_the_demo_keeps_every_promise_there(installed: Installed) -> None:
    """It reads and writes real files, and kills a process of its own: the wheel must hold all that it needs."""
    said = run(installed.cwd, installed.venv / "bin" / "turnwise", "demo", "--fast")
    assert "a forged log is found out" in said
    assert {path.name for path in (installed.cwd / "demo-out").iterdir()} >= {"chats.db", "audit.jsonl", "machine.svg"}
