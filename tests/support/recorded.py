"""Lists that a test holds what is public to, each in a file beside the test."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def recorded(file: Path, lines: Sequence[str]) -> list[str]:
    """Return the lines of a file, which are written anew first if `RECORD` is set."""
    if os.environ.get("RECORD"):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file.read_text(encoding="utf-8").splitlines()
