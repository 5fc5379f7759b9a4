"""Plant random faults with cosmic-ray, and see which tier of the suite catches each: `make mutation`.

The suite runs once under coverage, so that each fault is tried against the tests that reach its line, those of the
module's own name first. Faults are planted in place, one at a time; cosmic-ray restores the file.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import cosmic_ray.commands
import cosmic_ray.modules
from cosmic_ray.config import ConfigDict
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult
from coverage import CoverageData
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parents[1]
COVERAGE: Final = ROOT / ".cache" / "mutation.coverage"
PYTEST: Final = (sys.executable, "-P", "-m", "pytest")
"""Without the current folder on the path: `tests/cli` would be hidden by the package `cli` beside it."""
TIERS: Final = {"make test": "not deep", "make prove": "deep or hypothesis"}
OPERATORS: Final = re.compile(
    r"core/(NumberReplacer|AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceComparisonOperator_(Is_IsNot|IsNot_Is|Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_GtE|Gt_LtE)"
    r"|ReplaceUnaryOperator_Delete_Not|ZeroIterationForLoop|ExceptionReplacer|RemoveDecorator"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|FloorDiv_Mul|Div_Mul|Mod_Add)|ReplaceBreakWithContinue)"
)
"""The others mutate annotations (`int | None`), or give a second fault of the same kind on the same place."""
FIRST: Final = 40
"""How many of the nearest tests are tried before all that reach the line."""

HANGS_S: Final = 1200
"""The time limit for one fault's tests: an endless loop on another thread outlives pytest's own timeout."""


def reach(path: str, line: int) -> list[str]:
    """Return the tests that run the line, nearest first; for a line run on import, the tests that run the module."""
    data = CoverageData(str(COVERAGE))
    data.read()
    (measured,) = [name for name in data.measured_files() if name.endswith(f"/{path}")]
    by_line = data.contexts_by_lineno(measured)
    found = _tests(by_line.get(line, ())) or _tests(context for contexts in by_line.values() for context in contexts)
    stems = {Path(path).stem, Path(path).parent.name}
    folder = f"tests/{Path(path).parts[2]}/"

    def distance(test: str) -> tuple[bool, bool, str]:
        return Path(test.partition("::")[0]).stem.removeprefix("test_") not in stems, not test.startswith(folder), test

    return sorted(found, key=distance)


def _tests(contexts: Iterable[str]) -> set[str]:
    """Return test functions: parameters are cut off, since some hold characters that no command line takes."""
    return {context.partition("|")[0].partition("[")[0] for context in contexts if "::" in context}


def planted() -> tuple[str, int]:
    """Return the file and the line that differ from the last commit."""
    diff = _git("diff", "-U0", "--no-color")
    (path,) = set(re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE))
    (line,) = re.findall(r"^@@ -(\d+)", diff, re.MULTILINE)[:1]
    return path, int(line)


def judge() -> int:
    """Run the tests that reach the planted fault, and print the tier that caught it; 1 if one did."""
    tests = reach(*planted())
    for tier, marker in TIERS.items():
        for some in (tests[:FIRST], tests[FIRST:]):
            if some and _fails(some, marker, prove=tier == "make prove"):
                print(f"caught by {tier}")
                return 1
    print(f"survived {len(tests)} tests")
    return 0


def _fails(tests: list[str], marker: str, *, prove: bool) -> bool:
    environment = dict(os.environ, **({"PROVE": "1"} if prove else {}))
    processes = ["-n", "3", "--dist", "worksteal"] if len(tests) > FIRST else []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(tests))
        listed.flush()
        command = [*PYTEST, "-x", "--timeout", "600", "-m", marker, *processes, f"@{listed.name}"]
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=HANGS_S
            )
        except subprocess.TimeoutExpired:
            return True
    print(ended.stdout[-2000:])
    return ended.returncode not in (0, 5)  # 5: no test of this tier


def sample(session: WorkDB, count: int, seed: str) -> None:
    """Leave `count` faults to be tried, at most one a line; the others are marked as skipped."""
    pending = session.pending_work_items
    by_place: dict[tuple[str, int], list[WorkItem]] = defaultdict(list)
    for item in pending:
        (fault,) = item.mutations
        if OPERATORS.fullmatch(fault.operator_name):
            by_place[str(fault.module_path), fault.start_pos[0]].append(item)
    chance = random.Random(seed)  # noqa: S311 - a sample
    places = chance.sample(sorted(by_place), min(count, len(by_place)))
    chosen = {chance.choice(sorted(by_place[place], key=_kind)).job_id for place in places}
    others = [item.job_id for item in pending if item.job_id not in chosen]
    session.set_multiple_results(others, WorkResult(worker_outcome=WorkerOutcome.SKIPPED, output="not drawn"))


def _kind(item: WorkItem) -> tuple[str, int]:
    (fault,) = item.mutations
    return fault.operator_name, fault.occurrence


def measure() -> None:
    """Run both tiers under coverage, to know which test runs which line."""
    COVERAGE.parent.mkdir(exist_ok=True)
    command = [*PYTEST, "-n", "3", "--dist", "worksteal", "--cov", "turnwise", "--cov-report="]
    environment = dict(os.environ, COVERAGE_FILE=str(COVERAGE))
    subprocess.run([*command, "--cov-context=test"], cwd=ROOT, env=environment, check=True)


def plant(folder: str, count: int, seed: str) -> list[tuple[WorkItem, WorkResult]]:
    """Try a sample of the faults of a folder, and return each with its result."""
    config = ConfigDict(
        {
            "module-path": [f"src/turnwise/{folder}"],
            "timeout": 7200.0,
            "excluded-modules": [],
            "test-command": f"{sys.executable} {__file__} --judge",
            "distributor": {"name": "local"},
        }
    )
    with use_db(str(COVERAGE.with_name(f"mutation-{folder}.sqlite"))) as session:
        modules = cosmic_ray.modules.find_modules([Path("src/turnwise", folder)])
        cosmic_ray.commands.init(modules, session, {})
        sample(session, count, f"{seed}:{folder}")
        cosmic_ray.commands.execute(session, config)
        return [found for found in session.completed_work_items if found[1].worker_outcome is not WorkerOutcome.SKIPPED]


def report(results: dict[str, list[tuple[WorkItem, WorkResult]]]) -> None:
    """Print what each tier caught, by folder, and the faults that survived."""
    console = Console()
    table = Table("folder", "planted", *TIERS, "survived")
    for folder, tried in results.items():
        caught = Counter(re.findall(r"caught by (.*)|$", result.output or "")[0] for _, result in tried)
        first, second = (caught[tier] for tier in TIERS)
        shares = f"{first / len(tried):.0%}", f"{(first + second) / len(tried):.0%}"
        table.add_row(folder, str(len(tried)), *shares, str(caught[""]))
        for item, result in tried:
            if not result.is_killed:
                (fault,) = item.mutations
                console.print(f"{fault.module_path}:{fault.start_pos[0]}", result.diff, markup=False, highlight=False)
    console.print(table)


def main() -> int:
    """Measure, plant, report; with `--judge`, be the test command of one planted fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=["engine", "states", "persistence"])
    parser.add_argument("--count", type=int, default=40, help="faults for each folder")
    parser.add_argument("--seed", default="1", help="draws the faults")
    parser.add_argument("--measure", action="store_true", help="run the suite under coverage again first")
    parser.add_argument("--judge", action="store_true", help="run the tests that reach the fault in the working tree")
    options = parser.parse_args()
    if options.judge:
        return judge()
    if _git("diff", "--name-only"):
        raise SystemExit("Commit or stash your changes first: faults are planted in the working tree.")
    if options.measure or not COVERAGE.exists():
        measure()
    report({folder: plant(folder, options.count, options.seed) for folder in options.folders})
    return 0


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607


if __name__ == "__main__":
    sys.exit(main())
