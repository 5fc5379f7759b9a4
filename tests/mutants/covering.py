"""Which tests run which line, and how long each takes: measured once, by running the suite under coverage."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final, Self

from coverage import CoverageData

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Covering:
    """What the suite did when it was last run under coverage."""

    lines: dict[str, dict[int, list[str]]]
    """For each file, for each line: the tests that run it."""
    seconds: dict[str, float]
    """How long each test took."""

    def tests_of(self, path: str, line: int, *, most_seconds: float) -> list[str]:
        """Return the tests to try: those that run the line, then those of the file, then of its folder.

        Of each kind the quickest come first; of those that run the line, the ones named after the module, then those of
        the module's folder: others run it on their way to something else.

        A line that is run when its module is imported belongs to no test: all tests of the file may depend on it.
        Tests that start processes of their own, or look at what a fixture of the session has done, are only known by
        their names, or to stand in the folder's tests.
        """
        known = self._of_reader(path, line) if path.endswith(".sql") else self.lines.get(path, {})
        named, running = self._of_namesakes(path), {test for tests in known.values() for test in tests}
        nearest = self._quickest(set(known.get(line, ())) or self._of_users(path, line, known) or named)
        nearest += self._quickest(named - running - set(nearest))
        others = running - set(nearest)
        folder = f"tests/{PurePath(path).parts[0]}/"
        neighbours = {test for test in self.seconds if test.startswith(folder)} - set(nearest) - others
        chosen: list[str] = []
        spent = 0.0
        nearest.sort(key=lambda test: (test not in named, not test.startswith(folder)))
        for test in [*nearest, *self._quickest(others), *self._quickest(neighbours)]:
            spent += self.seconds.get(test, 0.1)
            if spent > most_seconds and len(chosen) >= min(len(nearest), 3):
                break
            chosen.append(test)
        return chosen

    def _of_reader(self, path: str, line: int) -> dict[int, list[str]]:
        """Return the tests of the module that sends a file's statements; those that send the line's are of the line."""
        module = PurePath(path).parents[1] / f"{PurePath(path).stem}.py"
        known = self.lines.get(str(module), {})
        above = (ROOT / path).read_text(encoding="utf-8").splitlines()[:line]
        name = next(words[2] for text in reversed(above) if (words := re.split(r"\W+", text))[1:2] == ["name"])
        code = (ROOT / module).read_text(encoding="utf-8").splitlines()
        sent = {test for number, text in enumerate(code, 1) if f'["{name}"]' in text for test in known.get(number, ())}
        return {0: sorted({test for tests in known.values() for test in tests}), line: sorted(sent)}

    def _of_users(self, path: str, line: int, known: Mapping[int, Sequence[str]]) -> set[str]:
        """Return the tests that run the lines where a value is used that a module makes once, when it is imported."""
        if not path.endswith(".py"):
            return set()
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        made = (node for node in tree.body if node.lineno <= line <= (node.end_lineno or node.lineno))
        names = {
            target.id
            for node in made
            for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
            if isinstance(target, ast.Name)
        }
        used = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names}
        return {test for place in used for test in known.get(place, ())}

    def _of_namesakes(self, path: str) -> set[str]:
        """Return the tests that are named after a file or its folder: they may run it in a process of its own."""
        inside = PurePath(path)
        exact, first = {f"test_{inside.stem}", f"test_{inside.parent.name}"}, f"test_{inside.parent.name}_"
        stems = {test: PurePath(test.partition("::")[0]).stem for test in self.seconds}
        return {test for test, stem in stems.items() if stem in exact or stem.startswith(first)}

    def _quickest(self, tests: set[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds.get(test, 0.1), test))

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read what `save` has written."""
        stored = json.loads(file.read_text(encoding="utf-8"))
        lines = {
            path: {int(line): [stored["tests"][number] for number in tests] for line, tests in known.items()}
            for path, known in stored["lines"].items()
        }
        return cls(lines, dict(zip(stored["tests"], stored["seconds"], strict=True)))

    def save(self, file: Path) -> None:
        """Write it down for later runs."""
        tests = sorted(self.seconds)
        numbers = {test: number for number, test in enumerate(tests)}
        lines = {
            path: {line: [numbers[test] for test in tests if test in numbers] for line, tests in known.items()}
            for path, known in self.lines.items()
        }
        stored = {"tests": tests, "seconds": [self.seconds[test] for test in tests], "lines": lines}
        file.write_text(json.dumps(stored), encoding="utf-8")


_NO_USE: Final = ("skipped", "failure", "error")
"""What a report says of tests that would see nothing, or a fault in everything."""
GROUPS: Final = (
    "states", "diagrams", "providers", "wire", "persistence", "engine", "cli", "service", "client",
    "test_public_face.py",
)  # fmt: skip
"""Tests that look at one thing each. Those that live whole lives are asked only about what these have missed."""


def measure(root: Path, scratch: Path) -> Covering:
    """Run the tests of single things under coverage and return which test runs what. It takes minutes."""
    data, times = scratch / "coverage", scratch / "times.xml"
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "--timeout", "120"]
    command += ["--cov=turnwise", "--cov-context=test", "--cov-report=", f"--junitxml={times}"]
    command += ["-o", "junit_family=xunit1", "-p", "no:cacheprovider", *(f"tests/{group}" for group in GROUPS)]
    environment = {**os.environ, "COVERAGE_FILE": str(data), "COVERAGE_CORE": "ctrace"}
    subprocess.run(command, cwd=root, env=environment, check=False)
    seconds = _seconds(root, times)
    return Covering(_lines(root, data, seconds), seconds)


def _seconds(root: Path, times: Path) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for case in ET.parse(times).iter("testcase"):
        place = _node_of(root, case.get("classname") or "")
        if place is not None and all(case.find(word) is None for word in _NO_USE):
            seconds[f"{place}::{case.get('name')}"] = float(case.get("time") or 0)
    return seconds


def _node_of(root: Path, classname: str) -> str | None:
    """Return the file and the classes that a dotted name stands for, as pytest names them.

    The file that the report itself names is another one where a class of tests was inherited.
    """
    words = classname.split(".")
    lengths = (n for n in range(len(words), 0, -1) if (root / "/".join(words[:n])).with_suffix(".py").exists())
    length = next(lengths, None)
    if length is None:
        return None
    return "::".join(["/".join(words[:length]) + ".py", *words[length:]])


def _lines(root: Path, file: Path, seconds: dict[str, float]) -> dict[str, dict[int, list[str]]]:
    data = CoverageData(str(file))
    data.read()
    lines: dict[str, dict[int, list[str]]] = {}
    for measured in data.measured_files():
        path = Path(os.path.realpath(measured))
        if not path.is_relative_to(root):
            continue
        known: dict[int, set[str]] = defaultdict(set)
        for line, contexts in data.contexts_by_lineno(measured).items():
            known[line].update(test for context in contexts if (test := context.partition("|")[0]) in seconds)
        lines[path.relative_to(root).as_posix()] = {line: sorted(tests) for line, tests in known.items()}
    return lines
