"""A trial: one fault in a copy of the repository, and the tests that should see it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from mutants.faults import Fault

Outcome = Literal["caught", "timed out", "survived", "not covered"]

_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_PYTEST: Final = ("pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "60", "--tb", "no", "-rfE")
_GONE: Final = re.compile(rb"^ERROR: not found: (.+)$", re.MULTILINE)
_SIMULATION: Final = ("turnwise.testing.simulation", "--seed", "0", "--runs")
_FOUND_NOTHING: Final = 5
"""What pytest returns when no test was there to run."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a fault."""

    fault: Fault
    outcome: Outcome
    test: str | None = None
    """The test that saw it."""
    tried: int = 0
    """How many tests were to be run."""


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """Give a copy of what git tracks or would track, as it is in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="turnwise-mutants-") as folder:
        for name in filter(None, listed.stdout.decode().split("\0")):
            source, target = root / name, Path(folder) / name
            if source.exists() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        yield Path(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Who looks for a fault, one after another until somebody sees it."""

    tests: Sequence[str]
    """The nearest ones."""
    worlds: int = 0
    """How many simulated worlds."""
    more: Sequence[str] = ()
    """Further tests that run the line."""
    lives: Sequence[str] = ()
    """Tests of whole lives."""
    patience: float
    """Seconds that the nearest tests and the worlds may take, the others ten times as many: a fault that makes them
    hang is caught, too."""


def tried(copy: Path, fault: Fault, search: Search) -> Trial:
    """Plant the fault, let them look until one sees it, and take the fault out again.

    Raises:
        LookupError: none of the tests is there any more.
    """
    if not search.tests:
        return Trial(fault, "not covered")
    file = copy / fault.path
    sound = file.read_bytes()
    tests = len(search.tests) + len(search.more)
    try:
        file.write_bytes(fault.planted_in(sound))
        seen = next(filter(None, _looks(copy, search)), None)
    except subprocess.TimeoutExpired:
        return Trial(fault, "timed out", tried=tests)
    finally:
        file.write_bytes(sound)
    return Trial(fault, "survived" if seen is None else "caught", seen, tests)


def _looks(copy: Path, search: Search) -> Iterator[str | None]:
    """Yield what each of them sees."""
    yield _seen_by(copy, search.tests, search.patience)
    if search.worlds and _run(copy, *_SIMULATION, str(search.worlds), patience=search.patience).returncode:
        yield "the simulation"
    for tests in filter(None, (search.more, search.lives)):
        yield _seen_by(copy, tests, 10 * search.patience)


def _seen_by(copy: Path, tests: Sequence[str], patience: float) -> str | None:
    """Return which of the tests fails first; `None` if none does."""
    chosen = copy / "chosen-tests.txt"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    done = _run(copy, *_PYTEST, f"@{chosen}", patience=patience)
    gone = {name.decode() for name in _GONE.findall(done.stderr)}
    if gone:  # tests for each row of the table, of which the fault has taken one, or tests of another day
        left = [test for test in tests if not any(name.endswith(test) for name in gone)]
        if not left:
            raise LookupError(f"those tests are not there any more; measure again: {', '.join(sorted(gone))}")
        chosen.write_text("\n".join(left), encoding="utf-8")
        done = _run(copy, *_PYTEST, f"@{chosen}", patience=patience)
    if done.returncode in (0, _FOUND_NOTHING):
        return None
    found = _FAILED.search(done.stdout.decode(errors="replace"))
    return found.group(1) if found else "the suite could not be imported"


def _run(copy: Path, *arguments: str, patience: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [_python_of(copy), "-m", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=patience,
        check=False,
    )


def _python_of(copy: Path) -> Path:
    """Return an interpreter that imports the copy, whatever environment a test gives a process that it starts."""
    folder = copy / ".venv"
    if not folder.exists():
        venv.create(folder, symlinks=True)
        (own,) = folder.glob("lib/python*/site-packages")
        installed = sysconfig.get_path("purelib")
        (own / "planted.pth").write_text(f"{copy / 'src'}\nimport site; site.addsitedir({installed!r})\n")
        for program in Path(sys.executable).parent.iterdir():
            with suppress(FileExistsError):
                (folder / "bin" / program.name).symlink_to(program)
    return folder / "bin" / "python"
