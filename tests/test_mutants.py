"""The tool that plants faults: what it changes, and that it tells a caught fault from a missed one."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest

from mutants import covering
from mutants.covering import Covering
from mutants.faults import faults_in, sources
from mutants.trial import Search, tried

ROOT = Path(__file__).parents[1]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one module, with one test that looks at half of it. Its tests need none of the other plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    (tmp_path / "doors.py").write_text(
        "def open_to(age):\n    return age >= 18\n\ndef note(log):\n    log.append('in')\n"
    )
    (tmp_path / "test_doors.py").write_text(
        "import sys; sys.path.insert(0, '.')\nimport doors\ndef test_age():\n"
        "    assert doors.open_to(18) and not doors.open_to(17)\n    doors.note([])\n"
    )
    return tmp_path


def test_every_fault_in_the_library_is_one_that_python_can_read() -> None:
    """A fault that is no Python would count as caught without a test having looked."""
    folders = ("states", "persistence", "engine", "cli", "providers", "diagrams")
    paths = [path for path in sources(ROOT, folders) if path.endswith(".py")]
    known = [fault for path in paths for fault in faults_in(ROOT, path)]
    assert len(known) > 5000
    for fault in random.Random(0).sample(known, 300):  # noqa: S311 - a sample
        source = (ROOT / fault.path).read_bytes()
        changed = fault.planted_in(source)
        assert changed != source, fault
        compile(changed, fault.path, "exec")


def test_a_condition_of_a_statement_of_sql_is_forgotten_whole(tmp_path: Path) -> None:
    (tmp_path / "one.sql").write_text("SELECT a FROM b WHERE c = 1 AND d IN (SELECT e FROM f WHERE g AND h) ORDER BY a")
    changed = [fault.before for fault in faults_in(tmp_path, "one.sql")]
    assert changed == [" AND d IN (SELECT e FROM f WHERE g AND h)", " AND h"]


def test_a_condition_ends_with_its_statement(tmp_path: Path) -> None:
    statements = (
        "-- name: one\nSELECT a FROM b WHERE c AND d = 1;\n\n-- name: two\n-- More.\nSELECT e FROM f WHERE g;\n"
    )
    (tmp_path / "two.sql").write_text(statements)
    assert [(fault.line, fault.before) for fault in faults_in(tmp_path, "two.sql")] == [(2, " AND d = 1")]


def test_a_fault_that_a_test_sees_is_caught_and_one_that_none_sees_survives(house: Path) -> None:
    sound = (house / "doors.py").read_bytes()
    outcomes = {
        fault.kind: tried(house, fault, Search(tests=["test_doors.py::test_age"], patience=60)).outcome
        for fault in faults_in(house, "doors.py")
        if fault.kind in ("comparison", "call forgotten")
    }
    assert outcomes == {"comparison": "caught", "call forgotten": "survived"}
    assert (house / "doors.py").read_bytes() == sound


def test_a_line_that_no_test_runs_is_said_to_be_uncovered(house: Path) -> None:
    assert tried(house, faults_in(house, "doors.py")[0], Search(tests=[], patience=60)).outcome == "not covered"


def test_tests_that_run_the_line_come_first_and_quick_ones_before_slow_ones() -> None:
    known = Covering({"a.py": {1: ["slow", "quick"], 2: ["near"]}}, {"slow": 5.0, "quick": 0.1, "near": 0.01})
    assert known.tests_of("a.py", 1, most_seconds=60) == ["quick", "slow", "near"]
    assert known.tests_of("a.py", 1, most_seconds=1) == ["quick", "slow"]


def test_tests_that_are_named_after_the_module_come_first() -> None:
    slow, quick = "tests/engine/test_context.py::test_it", "tests/engine/test_loop.py::test_all"
    known = Covering({"engine/prompt/context.py": {1: [slow, quick]}}, {slow: 5.0, quick: 0.1})
    assert known.tests_of("engine/prompt/context.py", 1, most_seconds=60) == [slow, quick]


def test_a_line_that_runs_in_another_process_falls_to_the_tests_of_its_name() -> None:
    seconds = {
        "tests/test_demo.py::test_all": 1.0,
        "tests/test_kill.py::test_it": 2.0,
        "tests/test_other.py::test_x": 0.1,
    }
    known = Covering({"cli/demo/kill.py": {1: ["tests/test_other.py::test_x"]}}, seconds)
    chosen = known.tests_of("cli/demo/kill.py", 9, most_seconds=60)
    assert chosen == ["tests/test_demo.py::test_all", "tests/test_kill.py::test_it", "tests/test_other.py::test_x"]


def test_what_a_module_makes_once_falls_to_the_tests_that_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("LIMIT = 3\n\ndef spent():\n    return 4 > LIMIT\n\ndef other():\n    return 1\n")
    monkeypatch.setattr(covering, "ROOT", tmp_path)
    known = Covering({"a.py": {4: ["slow"], 7: ["quick"]}}, {"slow": 5.0, "quick": 0.1})
    assert known.tests_of("a.py", 1, most_seconds=1) == ["slow"]


def test_a_statement_of_sql_falls_to_the_tests_that_send_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come first; the others of the module that has its file come next."""
    (tmp_path / "a" / "statements").mkdir(parents=True)
    statements = "-- name: one(c)\n-- All.\nSELECT 1\nFROM a;\n\n-- name: two\nSELECT 2\nFROM a;\n"
    (tmp_path / "a" / "statements" / "b.sql").write_text(statements)
    (tmp_path / "a" / "b.py").write_text('_SQL = statements_of(__name__)\nsend(_SQL["one"])\nsend(_SQL["two"])\n')
    monkeypatch.setattr(covering, "ROOT", tmp_path)
    known = Covering({"a/b.py": {2: ["slow"], 3: ["quick"]}}, {"slow": 5.0, "quick": 0.1})
    assert known.tests_of("a/statements/b.sql", 4, most_seconds=60) == ["slow", "quick"]
    assert known.tests_of("a/statements/b.sql", 8, most_seconds=60) == ["quick", "slow"]


def test_a_test_that_a_class_inherits_is_found_where_the_class_stands() -> None:
    name = "tests.persistence.test_postgres_conformance.TestPostgres"
    assert covering._node_of(ROOT, name) == "tests/persistence/test_postgres_conformance.py::TestPostgres"
    assert covering._node_of(ROOT, "tests.test_mutants") == "tests/test_mutants.py"
    assert covering._node_of(ROOT, "nowhere") is None


def test_what_is_measured_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    known = Covering({"a.py": {1: ["one", "two"], 7: ["two"]}}, {"one": 0.5, "two": 1.5})
    known.save(tmp_path / "covering.json")
    assert Covering.load(tmp_path / "covering.json") == known


def test_what_the_tests_of_single_things_miss_is_shown_to_those_of_whole_lives(house: Path) -> None:
    (house / "test_life.py").write_text(
        "import sys; sys.path.insert(0, '.')\nimport doors\ndef test_it():\n"
        "    log = []\n    doors.note(log)\n    assert log\n"
    )
    fault = next(fault for fault in faults_in(house, "doors.py") if fault.kind == "call forgotten")
    for who in ("more", "lives"):
        search = Search(tests=["test_doors.py::test_age"], patience=60, **{who: ["test_life.py"]})  # type: ignore[arg-type]
        trial = tried(house, fault, search)
        assert (trial.outcome, trial.test) == ("caught", "test_life.py::test_it")


def test_a_fault_is_seen_by_a_test_that_starts_a_process_with_an_environment_of_its_own(house: Path) -> None:
    """As a terminal does, or a service that is started for a test."""
    (house / "src").mkdir()
    (house / "src" / "doors.py").write_text((house / "doors.py").read_text())
    (house / "test_process.py").write_text(
        "import subprocess, sys\n\ndef test_it():\n"
        "    asked = 'import doors; assert doors.open_to(18)'\n"
        "    subprocess.run([sys.executable, '-c', asked], cwd='/', env={'PYTHONPATH': '/'}, check=True)\n"
    )
    fault = next(fault for fault in faults_in(house, "src/doors.py") if fault.kind == "comparison")
    assert tried(house, fault, Search(tests=["test_process.py::test_it"], patience=60)).outcome == "caught"


def test_a_test_that_is_gone_catches_nothing(house: Path) -> None:
    with pytest.raises(LookupError, match="measure again"):
        tried(house, faults_in(house, "doors.py")[0], Search(tests=["test_doors.py::test_gone"], patience=60))


def test_every_fault_that_is_listed_as_equivalent_can_be_planted_and_stands_once() -> None:
    """A line that has changed has to be thought about again."""
    listed = tomllib.loads((ROOT / "tests" / "mutants" / "equivalents.toml").read_text())["equivalent"]
    known = {fault.name for path in {path_in(one["fault"]) for one in listed} for fault in faults_in(ROOT, path)}
    names = [one["fault"] for one in listed]
    assert [name for name in names if name not in known or names.count(name) > 1] == []
    assert all(len(one["reason"].split()) > 4 for one in listed)


def path_in(fault: str) -> str:
    return fault.partition(": ")[0]


def test_tests_of_what_a_session_has_done_look_for_faults_in_it() -> None:
    """They run no line of it themselves: they are known by their names."""
    seconds = {"tests/cli/test_demo_screen.py::test_it": 0.1, "tests/cli/test_chat.py::test_it": 0.2}
    known = Covering({"cli/demo/acts.py": {3: ["tests/cli/test_chat.py::test_it"]}}, seconds)
    assert known.tests_of("cli/demo/acts.py", 3, most_seconds=1)[:2] == [*seconds]
