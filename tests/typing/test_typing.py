"""Users' code and code that fires triggers pass `mypy --strict` and a strict pyright; their mistakes do not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES: Final = ("public_api.py", "seam.py")
WRONG: Final = re.compile(r"  # wrong: (\S+)$")
FOUND: Final = re.compile(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$")

IGNORED: Final = re.compile(r"  # type: ignore\[")

MISTAKES: Final = {
    (name, number): wrong[1]
    for name in FILES
    for number, line in enumerate((HERE / name).read_text(encoding="utf-8").splitlines(), start=1)
    if (wrong := WRONG.search(line))
}
"""The codes of the mistakes, by file and line."""

LINES: Final = {
    (name, number)
    for name in FILES
    for number, line in enumerate((HERE / name).read_text(encoding="utf-8").splitlines(), start=1)
    if WRONG.search(line) or IGNORED.search(line)
}
"""The lines of the mistakes. mypy itself reports an ignored one that it misses; pyright ignores none."""


@pytest.mark.deep
def test_mypy_finds_exactly_the_mistakes() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *(HERE / name for name in FILES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if ": note: " not in line]
    found = [FOUND.search(line) for line in lines]
    assert None not in found, done.stdout + done.stderr
    assert {(one[1], int(one[2])): one[3] for one in found if one is not None} == MISTAKES


@pytest.mark.deep
def test_pyright_finds_the_same_mistakes() -> None:
    """Its wheel includes Node: nothing is fetched."""
    config = HERE / "pyrightconfig.json"
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", config, "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(FILES), done.stdout + done.stderr
    found = report["generalDiagnostics"]
    assert {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found} == LINES
