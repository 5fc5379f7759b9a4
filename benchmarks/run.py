"""The race: turnwise beside other libraries, every measurement in a process of its own, the repetitions interleaved.

Run by `make bench`. `--only A,B` and `--peers turnwise,langgraph` choose, `--chats 1000,100000` says how many chats the
stores of H hold, `--seconds 10` how long L takes, `--json` and `--plot` name files to write.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from contestants import MODULES, load, missing
from table import render

HERE: Final = Path(__file__).parent
LETTERS: Final = "ABCDEFGHIJKL"
COUNTS: Final = {"A": 200, "B": 200, "C": 300, "D": 5000}
WORKERS: Final = (1, 2, 4)
CHATS: Final = 1000
ORPHANS: Final = 10_000
STORES: Final = ("sqlite", "postgres")
SIZES: Final = "1000,100000,1000000"
MEMORY: Final = {"resting": 10_000, "streaming": 1000}
LONG_CHATS: Final = {"calls": 5000, "messages": 10_000, "megabytes": 100}
SECONDS: Final = 60.0
ONCE: Final = "HIKL"
"""Not repeated: each figure is the median of many already."""
_TIMEOUT: Final = 400
_TIMEOUTS: Final = {"many_chats.py": 7200, "long_chat.py": 1800, "memory.py": 1800, "orphans.py": 1800}
_NO_DIRECTORY: Final = frozenset({"scaling.py", "startup.py"})
_ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Every library may keep its modules compiled, as an installed one does."""

Runs = dict[str, dict[str, list[dict[str, float]]]]


Programs = dict[str, list[str]]
"""The programs of a letter, by the name of the measurement."""


def turnwise_only(sizes: list[int], seconds: float) -> dict[str, Programs]:
    """Return what is measured of turnwise alone, by letter."""
    return {
        "F": {"F killed": ["takeover.py", "killed"], "F frozen": ["takeover.py", "frozen"]},
        "G": {f"G {workers}": ["scaling.py", str(workers), str(CHATS)] for workers in WORKERS},
        "H": {f"H {store} {size}": ["many_chats.py", store, str(size)] for store in STORES for size in sizes},
        "I": {f"I {what}": ["memory.py", what, str(count)] for what, count in MEMORY.items()},
        "J": {
            f"J {store} {workers}": ["orphans.py", store, str(workers), str(ORPHANS)]
            for store in STORES
            for workers in WORKERS
        },
        "K": {
            f"K {store} {what}": ["long_chat.py", what, store, str(count)]
            for store in STORES
            for what, count in LONG_CHATS.items()
        },
        "L": {f"L {store}": ["service_load.py", store, str(seconds)] for store in STORES},
    }


def jobs(letters: str, contestants: list[str], alone: dict[str, Programs]) -> list[tuple[str, str, list[str]]]:
    """Return contestant, name of the measurement and the program to run, in the order of one repetition."""
    chosen = []
    for letter in letters:
        if letter in alone:
            chosen += [("turnwise", name, program) for name, program in alone[letter].items()]
            continue
        for name in contestants:
            contestant = load(name)
            if letter not in contestant.metrics:
                continue
            program = ["measure.py", name, letter, str(COUNTS[letter])] if letter in COUNTS else []
            chosen.append((name, letter, program or ["startup.py", contestant.imports]))
    return chosen


def run(program: list[str]) -> dict[str, float]:
    """Run a measurement in an empty directory of its own.

    Raises:
        RuntimeError: it failed; the text says how.
    """
    takes_directory = program[0] not in _NO_DIRECTORY
    with tempfile.TemporaryDirectory(prefix="race-") as directory:
        done = subprocess.run(  # noqa: S603 - our own programs
            [sys.executable, HERE / program[0], *program[1:], *([directory] if takes_directory else [])],
            capture_output=True,
            text=True,
            timeout=_TIMEOUTS.get(program[0], _TIMEOUT),
            env=_ENVIRONMENT,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{' '.join(program)} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    result: dict[str, float] = json.loads(lines[-1])
    return result


def race(todo: list[tuple[str, str, list[str]]], repetitions: int) -> Runs:
    """Run everything, the contestants taking turns, so that a noisy minute hits all of them alike."""
    runs: Runs = defaultdict(lambda: defaultdict(list))
    failed: set[tuple[str, str]] = set()
    for repetition in range(repetitions):
        for number, (name, measurement, program) in enumerate(todo, start=1):
            if (name, measurement) in failed or (repetition and measurement[0] in ONCE):
                continue
            _tell(f"\r\033[K{repetition + 1}/{repetitions} {number}/{len(todo)} {name} {measurement}")
            try:
                figures = run(program)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed.add((name, measurement))
                _tell(f"\r\033[K{name} {measurement} left out: {error}\n")
            else:
                runs[name][measurement].append(figures)
    _tell("\r\033[K")
    return runs


def medians(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """Return the median of every figure."""
    return {
        name: {
            measurement: {figure: statistics.median(row[figure] for row in rows) for figure in rows[0]}
            for measurement, rows in measurements.items()
        }
        for name, measurements in runs.items()
    }


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def main() -> None:
    """Run the race and show its results."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--reps", type=int, default=3, help="repetitions, of which the median counts")
    parser.add_argument("--only", default=LETTERS, help="measurements, for example AB")
    parser.add_argument("--chats", default=SIZES, help="how many chats are in the stores of H, each at least 50")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long the service of L is under load")
    parser.add_argument("--peers", default=",".join(MODULES), help=f"of {', '.join(MODULES)}")
    parser.add_argument("--json", type=Path, help="file for every figure of every run")
    parser.add_argument("--plot", type=Path, help="file for the drawing, an SVG")
    parser.add_argument("--from", type=Path, dest="source", help="show the results of an earlier --json again")
    options = parser.parse_args()
    wanted, letters = options.peers.split(","), options.only.replace(",", "")
    if unknown := sorted({*wanted} - {*MODULES}):
        parser.error(f"--peers: there is no {', '.join(unknown)}; there are {', '.join(MODULES)}")
    if unknown := sorted({*letters} - {*LETTERS}):
        parser.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(LETTERS)}")
    if options.source:
        results = json.loads(options.source.read_text())
    else:
        alone = turnwise_only([int(size) for size in options.chats.split(",")], options.seconds)
        results = _measured(letters, wanted, options.reps, alone)
    print(render(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plot:
        from plot import draw  # noqa: PLC0415 - it imports turnwise, of which only the racers are to have anything

        options.plot.write_text(draw(results))


def _measured(letters: str, wanted: list[str], repetitions: int, alone: dict[str, Programs]) -> dict[str, Any]:
    contestants = []
    for name in wanted:
        package = missing(name)
        if package is None:
            contestants.append(name)
        else:
            _tell(f"{name} does not take part: {package} is not installed; `make bench PEERS=1` installs all\n")
    about = machine()
    classes = {name: load(name) for name in contestants}
    runs = race(jobs(letters, contestants, alone), repetitions)
    return {
        "machine": about | {"load_after": round(os.getloadavg()[0], 2)},
        "repetitions": repetitions,
        "counts": COUNTS | {"G": CHATS, "I": MEMORY, "J": ORPHANS, "K": LONG_CHATS},
        "contestants": {
            name: {
                "title": contestant.title,
                "keeps": contestant.keeps,
                "versions": {each: importlib.metadata.version(each) for each in contestant.distributions},
            }
            for name, contestant in classes.items()
        },
        "medians": medians(runs),
        "runs": runs,
    }


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    main()
