"""Tools that read: the files below one folder, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from turnwise.engine.tools.declare import Tool, tool

MOST_NAMES: Final = 60


def file_tools(root: Path, *, max_characters: int = 20_000) -> list[Tool]:
    """Return `list_files` and `read_file` for the folder `root`. Hidden files and all that lies outside are refused."""
    root = root.resolve()

    def inside(path: str) -> Path:
        place = (root / path).resolve()
        if not place.is_relative_to(root):
            raise PermissionError(f"{path!r} lies outside the folder {root.name!r}; only what is below it may be read")
        if any(part.startswith(".") for part in place.relative_to(root).parts):
            raise PermissionError(f"{path!r} is hidden; hidden files are not read")
        return place

    @tool(parallel_safe=True, crash="at_least_once")
    def list_files(path: str = ".") -> list[str]:
        """List the files and folders in a folder of the project."""
        names = sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in inside(path).iterdir()
            if not entry.name.startswith(".")
        )
        more = len(names) - MOST_NAMES
        return [*names[:MOST_NAMES], f"and {more} more"] if more > 0 else names

    @tool(parallel_safe=True, crash="at_least_once")
    def read_file(path: str) -> str:
        """Read a text file of the project."""
        with inside(path).open(encoding="utf-8") as file:
            text = file.read(max_characters)
            return f"{text}\n[cut: the file goes on]" if file.read(1) else text

    return [list_files, read_file]
