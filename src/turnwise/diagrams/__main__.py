"""`python -m turnwise.diagrams`: draw the machine, write the committed drawings, or check that they are current."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from turnwise.diagrams import machine_json, mermaid, slide, svg, table
from turnwise.diagrams.elk import NoLayout, laid_out
from turnwise.diagrams.graph import machine_graph
from turnwise.diagrams.grouping import arrows
from turnwise.diagrams.layout import FILE, Graph, StaleLayout, committed, encoded, is_current
from turnwise.diagrams.model import machine
from turnwise.diagrams.slide import slide_graph
from turnwise.diagrams.texts import matrix

PACKAGE: Final = Path(__file__).resolve().parent
DIFF_LINES: Final = 12
DIFF_WIDTH: Final = 160


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done or current, 1 something is stale, 2 misuse."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.state is not None or options.format is not None:
        draw = mermaid if options.format == "mermaid" else svg
        try:
            _say(draw(options.state).rstrip("\n"))
        except ValueError as unknown:
            parser.error(str(unknown))
        return 0
    root: Path | None = options.out or repository()
    try:
        if options.check:
            return _check(drawings(root), root or PACKAGE)
        if root is None:
            parser.error("an installed package keeps the drawings it came with; give --out DIR to write them elsewhere")
        if (checkout := repository()) is not None:
            renew_layouts(checkout / ".cache" / "elkjs")
        return _write(drawings(root))
    except (StaleLayout, NoLayout) as problem:
        _say(str(problem))
        return 1


def repository(package: Path = PACKAGE) -> Path | None:
    """Return the checkout this package is used from, or `None` if it is an installed wheel."""
    root = package.parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def graphs() -> tuple[Graph, ...]:
    """Return what is laid out by ELK."""
    picture = machine()
    return machine_graph(picture, arrows(picture)).graph, slide_graph()


def renew_layouts(folder: Path) -> None:
    """Let ELK lay out anew what has changed since the layouts were committed; `folder` keeps it."""
    found = committed()
    stale = {graph.name: laid_out(graph, folder) for graph in graphs() if not is_current(graph)}
    if stale:
        FILE.write_text(encoded(found | stale), encoding="utf-8")
        committed.cache_clear()
        _say(f"wrote {FILE}")


def drawings(root: Path | None, package: Path = PACKAGE) -> dict[Path, str]:
    """Return every generated file with what it must hold: below a root, or without one what ships in the package."""
    rendered = package / "rendered" if root is None else root / "src" / "turnwise" / "diagrams" / "rendered"
    files = {
        rendered / "machine.svg": svg(),
        rendered / "machine.mmd": mermaid(),
        rendered / "simple.svg": slide(),
        rendered / "simple.mmd": mermaid(simple=True),
        rendered / "table.svg": table(),
        rendered / "machine.json": machine_json(),
    }
    if root is not None:
        files[root / "docs" / "machine" / "matrix.md"] = matrix()
    return files


def _write(files: dict[Path, str]) -> int:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        _say(f"wrote {path}")
    return 0


def _check(files: dict[Path, str], base: Path) -> int:
    stale = 0
    for path, text in files.items():
        on_disk = path.read_text(encoding="utf-8") if path.is_file() else None
        if on_disk != text:
            stale += 1
            name = path.relative_to(base).as_posix()
            _say(f"{name} is missing" if on_disk is None else f"{name} is not current:\n{_difference(on_disk, text)}")
    if stale:
        _say("run `python -m turnwise.diagrams` and commit what it writes")
        return 1
    _say(f"all {len(files)} drawings are what the declared table says")
    return 0


def _difference(on_disk: str, wanted: str) -> str:
    lines = difflib.unified_diff(on_disk.splitlines(), wanted.splitlines(), "found", "declared", n=0, lineterm="")
    return "\n".join(line[:DIFF_WIDTH] for line in islice(lines, DIFF_LINES))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m turnwise.diagrams", description="Draw the declared machine.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the files that are stale")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the root to write or check below, not the checkout")
    parser.add_argument("--state", metavar="NAME", help="print one drawing with this state lit")
    parser.add_argument("--format", choices=("mermaid", "svg"), help="print one drawing (svg by default)")
    return parser


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")


if __name__ == "__main__":
    sys.exit(main())
