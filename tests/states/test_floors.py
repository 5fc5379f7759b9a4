"""The ground floor: imports point downwards only, and nothing on it touches the world."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PLANTED = {
    "floors": ("engine/settings.py", "turnwise.cli.style"),
    "stores": ("persistence/rows.py", "turnwise.persistence.sqlite.connection"),
    "neighbours": ("persistence/sqlite/queries.py", "turnwise.persistence.postgres.pool"),
    "terminal": ("providers/scripted.py", "rich"),
    "http": ("cli/serve.py", "fastapi"),
    "pure": ("states/names.py", "time"),
}
"""For each contract, a module and an import that breaks it."""


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    return subprocess.run(
        [linter, "--no-cache"], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_imports_keep_the_floors() -> None:
    found = lint(ROOT)

    assert found.returncode == 0, found.stdout
    assert "0 broken" in found.stdout


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the library, its folders in place of the links to them."""
    copy = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


@pytest.mark.parametrize("contract", [contract["id"] for contract in CONTRACTS])
def test_an_import_against_a_contract_is_found(house: Path, contract: str) -> None:
    name = next(known["name"] for known in CONTRACTS if known["id"] == contract)
    module, imported = PLANTED[contract]
    file = house / "src" / "turnwise" / module
    sound = file.read_text(encoding="utf-8")
    file.write_text(f"{sound}\nimport {imported}\n", encoding="utf-8")
    found = lint(house)
    file.write_text(sound, encoding="utf-8")

    assert found.returncode == 1, found.stdout
    assert f"{name} BROKEN" in found.stdout


def test_every_folder_stands_on_a_floor() -> None:
    floors = " ".join(next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"))
    packages = [link.name for link in (ROOT / "src" / "turnwise").iterdir() if link.is_symlink()]

    assert [package for package in packages if f"turnwise.{package}" not in floors] == []
