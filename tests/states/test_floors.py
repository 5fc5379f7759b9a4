"""The ground floor: imports point downwards only, and nothing on it touches the world."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    return subprocess.run(
        [linter, "--no-cache"], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_imports_keep_the_layers() -> None:
    report = lint(ROOT)
    assert report.returncode == 0, report.stdout
    assert "0 broken" in report.stdout
