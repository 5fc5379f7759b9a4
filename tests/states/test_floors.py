"""The ground floor: imports point downwards only, and nothing on it touches the world."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PLANTED = [
    ("floors", "engine/settings.py", "turnwise.cli.style"),
    ("wings", "engine/jobs/request.py", "turnwise.engine.worker.identity"),
    ("rings", "providers/part_builders.py", "turnwise.providers.reply_builder"),
    ("stores", "persistence/chat_cache.py", "turnwise.persistence.sqlite.connection"),
    ("stores", "persistence/sqlite/queries.py", "turnwise.persistence.postgres.pool"),
    ("terminal", "logger.py", "rich"),
    ("terminal", "extras.py", "typer"),
    ("terminal", "service/app.py", "prompt_toolkit"),
    ("http", "cli/serve.py", "fastapi"),
    ("pure", "states/names.py", "time"),
]
"""Contracts, each with a module and an import that breaks it."""


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    return subprocess.run(
        [linter, "--no-cache"], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_imports_keep_the_floors() -> None:
    report = lint(ROOT)

    assert report.returncode == 0, report.stdout
    assert "0 broken" in report.stdout


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the linter says of a copy of the library in which all those imports are planted, by contract."""
    copy = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for _, module, imported in PLANTED:
        with (copy / "src" / "turnwise" / module).open("a", encoding="utf-8") as file:
            file.write(f"\nimport {imported}\n")
    _, _, report = lint(copy).stdout.partition("Broken contracts\n")
    sections = re.split(r"\n(.+)\n-{9,}\n", report)  # ..., a heading, the text below it, the next heading, ...
    texts = {heading: " ".join(text.split()) for heading, text in zip(sections[1::2], sections[2::2], strict=True)}
    return {contract["id"]: texts.get(contract["name"], "") for contract in CONTRACTS}


def test_every_contract_is_seen_to_break() -> None:
    assert {contract["id"] for contract in CONTRACTS} == {contract for contract, _, _ in PLANTED}


@pytest.mark.parametrize(("contract", "module", "imported"), PLANTED)
def test_an_import_against_a_contract_is_found(
    findings: dict[str, str], contract: str, module: str, imported: str
) -> None:
    importer = f"turnwise.{module.removesuffix('.py').replace('/', '.')}"
    finding = "No cycles are allowed in turnwise.providers." if contract == "rings" else f"{importer} -> {imported} (l."

    assert finding in findings[contract]


def test_every_folder_stands_on_a_floor() -> None:
    floors = " ".join(next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"))
    packages = [link.name for link in (ROOT / "src" / "turnwise").iterdir() if link.is_symlink()]

    assert [package for package in packages if f"turnwise.{package}" not in floors] == []
