"""What users write, and what fires triggers, passes `mypy --strict` and a strict pyright; their mistakes do not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES: Final = ("public_api.py", "seam.py")
WRONG: Final = re.compile(r"  # wrong: (\S+)$")
FOUND: Final = re.compile(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$")

IGNORED: Final = re.compile(r"  # type: ignore\[")

Findings = Mapping[tuple[str, int], str]
"""The codes of what is wrong, by file and line."""

MISTAKES: Final[Findings] = {
    (name, number): wrong[1]
    for name in FILES
    for number, line in enumerate((HERE / name).read_text(encoding="utf-8").splitlines(), start=1)
    if (wrong := WRONG.search(line))
}
LINES: Final = {
    (name, number)
    for name in FILES
    for number, line in enumerate((HERE / name).read_text(encoding="utf-8").splitlines(), start=1)
    if WRONG.search(line) or IGNORED.search(line)
}
"""Where mistakes stand. mypy says itself if it does not find one of those that are ignored; pyright ignores none."""


@pytest.fixture(scope="module")
def findings() -> Findings:
    """Return what mypy finds in all of the files, looked at once."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *(HERE / name for name in FILES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if ": note: " not in line]
    found = [FOUND.search(line) for line in lines]
    assert None not in found, done.stdout + done.stderr
    return {(one[1], int(one[2])): one[3] for one in found if one is not None}


@pytest.mark.timeout(600)  # a cold mypy reads all of pydantic
def test_what_is_right_is_typed(findings: Findings) -> None:
    assert {place: code for place, code in findings.items() if place not in MISTAKES} == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", MISTAKES, ids=lambda place: f"{place[0]}-{place[1]}")
def test_a_mistake_is_found(place: tuple[str, int], findings: Findings) -> None:
    assert findings.get(place) == MISTAKES[place]


@pytest.fixture(scope="module")
def lines_of_pyright() -> Mapping[tuple[str, int], str]:
    """Return what pyright finds in all of the files, by file and line. Its wheel brings a Node: nothing is fetched."""
    config = HERE / "pyrightconfig.json"
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", config, "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(FILES), done.stdout + done.stderr
    found = report["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1): one["message"] for one in found}


@pytest.mark.timeout(600)
def test_what_is_right_is_typed_for_pyright(lines_of_pyright: Mapping[tuple[str, int], str]) -> None:
    assert {place: told for place, told in lines_of_pyright.items() if place not in LINES} == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", sorted(LINES), ids=lambda place: f"{place[0]}-{place[1]}")
def test_a_mistake_is_found_by_pyright(place: tuple[str, int], lines_of_pyright: Mapping[tuple[str, int], str]) -> None:
    assert place in lines_of_pyright
