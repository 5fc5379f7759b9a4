"""`python -m turnwise.diagrams`: write the committed drawings of a checkout, or check that they are current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from turnwise.diagrams import machine_json, mermaid, slide, svg, table
from turnwise.diagrams.graph import machine_graph
from turnwise.diagrams.layout import FILE, Graph, NoLayout, StaleLayout, committed, encoded, is_current, laid_out
from turnwise.diagrams.model import machine
from turnwise.diagrams.slide import slide_graph
from turnwise.diagrams.texts import matrix


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done or current, 1 something is stale, 2 misuse."""
    parser = argparse.ArgumentParser(prog="python -m turnwise.diagrams", description="Draw the declared machine.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the files that are stale")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the root to write or check below, not the checkout")
    options = parser.parse_args(arguments)
    checkout = Path(__file__).resolve().parents[3]
    is_checkout = (checkout / "pyproject.toml").is_file()
    if not is_checkout and options.out is None:
        parser.error("an installed package keeps the drawings it came with; give --out DIR to write them elsewhere")
    try:
        if is_checkout and not options.check:
            _renew_layouts(checkout / ".cache" / "elkjs")
        files = drawings(options.out or checkout)
    except (StaleLayout, NoLayout) as problem:
        _print(str(problem))
        return 1
    return _check(files) if options.check else _write(files)


def graphs() -> tuple[Graph, ...]:
    """Return the graphs that ELK lays out."""
    return machine_graph(machine()).graph, slide_graph()


def _renew_layouts(folder: Path) -> None:
    stale = {graph.name: laid_out(graph, folder) for graph in graphs() if not is_current(graph)}
    if stale:
        FILE.write_text(encoded(committed() | stale), encoding="utf-8")
        committed.cache_clear()
        _print(f"wrote {FILE}")


def drawings(root: Path) -> dict[Path, str]:
    """Return every generated file below a root, with its content."""
    rendered = root / "src" / "turnwise" / "diagrams" / "rendered"
    return {
        rendered / "machine.svg": svg(),
        rendered / "machine.mmd": mermaid(),
        rendered / "simple.svg": slide(),
        rendered / "simple.mmd": mermaid(simple=True),
        rendered / "table.svg": table(),
        rendered / "machine.json": machine_json(),
        root / "docs" / "machine" / "matrix.md": matrix(),
    }


def _write(files: dict[Path, str]) -> int:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        _print(f"wrote {path}")
    return 0


def _check(files: dict[Path, str]) -> int:
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        _print(f"{path} is not current")
    _print("run `python -m turnwise.diagrams` and commit what it writes" if stale else "all drawings are current")
    return 1 if stale else 0


def _print(words: str) -> None:
    sys.stdout.write(words + "\n")


if __name__ == "__main__":
    sys.exit(main())
