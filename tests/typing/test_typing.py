"""The public face is typed as users expect: what they write passes `mypy --strict`, their mistakes do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.timeout(600)  # a cold mypy reads all of pydantic
def test_what_users_write_is_typed() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", HERE / "public_api.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
