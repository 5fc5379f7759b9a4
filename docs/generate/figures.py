"""The figures of the benchmarks, as the program prints them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def growth() -> str:
    """Return the tables of what memory, takeovers and statements cost as a store grows."""
    results = ROOT / "docs" / "benchmarks" / "growth.json"
    command: list[str | Path] = [sys.executable, ROOT / "benchmarks" / "run.py", "--from", results]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - a program of our own
    blocks = done.stdout.strip("\n").split("\n\n")
    return "\n\n".join(block if block.startswith("|") else f"```text\n{block}\n```" for block in blocks) + "\n"
