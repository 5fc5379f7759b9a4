"""The ground floor: imports point downwards only, and nothing on it touches the world."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
RING = """
[importlinter]
root_package = turnwise
[importlinter:contract:planted]
name = planted
type = forbidden
source_modules = turnwise.persistence
forbidden_modules = turnwise.states
"""


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([linter, "--no-cache", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_imports_keep_the_floors() -> None:
    found = lint()

    assert found.returncode == 0, found.stdout
    assert "0 broken" in found.stdout


def test_the_linter_sees_through_the_links_of_the_packages(tmp_path: Path) -> None:
    """A contract that is broken must be found broken: the folders are symlinks, which a linter could pass over."""
    config = tmp_path / "planted.ini"
    config.write_text(RING)
    found = lint("--config", str(config))

    assert found.returncode == 1
    assert "turnwise.persistence" in found.stdout


def test_every_folder_stands_on_a_floor() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = " ".join(next(contract["layers"] for contract in contracts if contract["type"] == "layers"))
    packages = [link.name for link in (ROOT / "src" / "turnwise").iterdir() if link.is_symlink()]

    assert [package for package in packages if f"turnwise.{package}" not in floors] == []
