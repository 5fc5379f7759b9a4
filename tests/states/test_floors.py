"""The layers: imports point downwards only, and nothing in the lowest one touches the world."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_keep_the_layers() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    report = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert report.returncode == 0, report.stdout
    assert "0 broken" in report.stdout
