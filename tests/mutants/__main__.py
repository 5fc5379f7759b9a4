"""Plant faults in the library, one at a time, and see whether the suite catches them: `make mutants`.

Why a tool of our own: `mutmut` puts a trampoline in place of every function (rows of the table are known by their
functions' names) and leaves out what is decorated; `cosmic-ray` runs one fixed command for every fault (half an hour
for each, or too few tests) and forgets no statement and no condition of SQL. Here the tests that run the changed line
come first, quickest first.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

if not __package__:  # it is run by its path: `python tests/mutants`
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.covering import Covering, measure
from mutants.faults import Fault, faults_in, sources
from mutants.trial import Search, Trial, copy_of, tried

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).parent
SCRATCH: Final = ROOT / ".mutants"
WINGS: Final[dict[str, tuple[str, ...]]] = {
    "states": ("states",),
    "persistence": ("persistence",),
    "postgres": ("persistence",),
    "engine": ("engine",),
    "cli": ("cli",),
    "providers": ("providers",),
    "diagrams": ("diagrams",),
    "service": ("service",),
    "client": ("client",),
}
_LIVED: Final = {"states", "persistence", "engine"}
"""Wings whose code a simulated world runs."""
_console = Console()


def wing_of(path: str) -> str | None:
    """Return the wing a file counts for; `None` for what is itself a test."""
    if path.startswith("persistence/conformance"):
        return None
    if path.startswith("persistence/"):
        return "postgres" if "postgres" in path else "persistence"
    if path.startswith("cli/"):
        return "cli"
    return path.partition("/")[0]


def chosen_faults(wing: str, count: int, seed: int) -> list[Fault]:
    """Return `count` faults of a wing, drawn by `seed`: never two of one line."""
    known = [fault for path in sources(ROOT, WINGS[wing]) if wing_of(path) == wing for fault in faults_in(ROOT, path)]
    random.Random(f"{seed}:{wing}").shuffle(known)  # noqa: S311 - a sample, no secret
    chosen: dict[tuple[str, int], Fault] = {}
    for fault in known:
        if len(chosen) < count:
            chosen.setdefault((fault.path, fault.line), fault)
    return sorted(chosen.values(), key=lambda fault: (fault.path, fault.line))


WORLDS: Final = 100
"""How many simulated worlds look for what the tests of single things have missed."""


LONGER: Final = 6
"""How many times as long more tests look for what the nearest ones have missed: a line may be run by a thousand."""


READERS: Final = (
    "tests/engine/test_logger.py",
    "tests/engine/test_calls_of_user_code.py",
    "tests/test_words.py",
    "tests/test_public_face.py",
    "tests/service/test_public_face.py",
    "tests/service/test_promised_api.py",
    "tests/cli/test_command_line.py::test_every_command_and_every_option_says_what_it_is_for",
    "tests/cli/test_command_line.py::test_what_a_command_takes_is_called_by_what_it_is",
)
"""Tests that read the library's source, or what is made of it once for all: no line is known to be run by them."""


LIVES: Final = ("tests/life", "tests/edge", "tests/acceptance/test_crash_points.py", "tests/acceptance/test_workers.py")
"""Tests of whole lives: with `--whole` they look for what all the others have missed, which takes minutes each."""


def run(
    faults: Sequence[Fault], covering: Covering, *, jobs: int, most_seconds: float, lives: Sequence[str] = ()
) -> list[Trial]:
    """Try every fault, `jobs` at a time, each job in a copy of its own."""
    with ExitStack() as stack:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(jobs):
            copies.put(stack.enter_context(copy_of(ROOT)))

        def one(fault: Fault) -> Trial:
            copy = copies.get()
            try:
                tests = covering.tests_of(fault.path, fault.line, most_seconds=most_seconds)
                many = covering.tests_of(fault.path, fault.line, most_seconds=LONGER * most_seconds)
                more = [*READERS, *(test for test in many if test not in tests)]
                worlds = WORLDS if wing_of(fault.path) in _LIVED else 0
                patience = 60 + 4 * most_seconds
                return tried(copy, fault, Search(tests=tests, more=more, worlds=worlds, lives=lives, patience=patience))
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            trials = []
            for trial in track(pool.map(one, faults), "planting", total=len(faults), console=_console):
                trials.append(trial)
                _console.print(f"{len(trials)} of {len(faults)}: {trial.fault.name}: {trial.outcome}", highlight=False)
            return trials


def report(trials: Sequence[Trial], equivalents: dict[str, str]) -> dict[str, dict[str, int]]:
    """Print the survivors and a table by wing; return the table."""
    table: dict[str, dict[str, int]] = {}
    for trial in trials:
        wing = wing_of(trial.fault.path) or ""
        figures = table.setdefault(wing, {"planted": 0, "caught": 0, "equivalent": 0, "survived": 0})
        figures["planted"] += 1
        missed = trial.outcome in ("survived", "not covered")
        equivalent = missed and trial.fault.name in equivalents
        figures["equivalent" if equivalent else "survived" if missed else "caught"] += 1
        if missed and not equivalent:
            fault = trial.fault
            place = f"[bold]{fault.path}:{fault.line}[/] {trial.outcome} ({fault.kind}; {trial.tried} tests)"
            _console.print(place, highlight=False)
            _console.print(f"    - {fault.before}\n    + {fault.after or '(nothing)'}", markup=False, highlight=False)
    shown = Table("folder", "planted", "equivalent", "caught", "survived", "caught, %")
    for wing, figures in table.items():
        shown.add_row(
            wing, *(str(figures[key]) for key in ("planted", "equivalent", "caught", "survived")), _rate(figures)
        )
    _console.print(shown)
    return table


def _rate(figures: dict[str, int]) -> str:
    counted = figures["planted"] - figures["equivalent"]
    return f"{100 * figures['caught'] / counted:.1f}" if counted else "-"


def main() -> int:
    """Plant, report, and return 1 if a folder is below the bar."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--wings", default=",".join(WINGS), help="folders, with commas")
    parser.add_argument("--count", type=int, default=30, help="faults in each")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most-seconds", type=float, default=45, help="of tests for one fault")
    parser.add_argument("--bar", type=float, default=95, help="per cent that must be caught in every folder")
    parser.add_argument("--measure", action="store_true", help="run the suite under coverage again first")
    parser.add_argument("--whole", action="store_true", help="show survivors to the tests of whole lives, too")
    parser.add_argument("--out", type=Path, default=SCRATCH / "results.json")
    options = parser.parse_args()
    SCRATCH.mkdir(exist_ok=True)
    file = SCRATCH / "covering.json"
    if options.measure or not file.exists():
        _console.print("Measuring which test runs which line: this takes minutes, once ...")
        measure(ROOT, SCRATCH).save(file)
    covering = Covering.load(file)
    equivalents = {
        entry["fault"]: entry["reason"]
        for entry in tomllib.loads((HERE / "equivalents.toml").read_text(encoding="utf-8")).get("equivalent", [])
    }
    faults = [fault for wing in options.wings.split(",") for fault in chosen_faults(wing, options.count, options.seed)]
    trials = run(
        faults, covering, jobs=options.jobs, most_seconds=options.most_seconds, lives=LIVES if options.whole else ()
    )
    table = report(trials, equivalents)
    results = [
        {"fault": trial.fault.name, "line": trial.fault.line, "outcome": trial.outcome, "test": trial.test}
        for trial in trials
    ]
    options.out.write_text(json.dumps({"seed": options.seed, "table": table, "trials": results}, indent=1))
    below = [wing for wing, figures in table.items() if float(_rate(figures).replace("-", "100")) < options.bar]
    if below:
        _console.print(f"Below {options.bar:g} %: {', '.join(below)}")
    return bool(below)


if __name__ == "__main__":
    sys.exit(main())
