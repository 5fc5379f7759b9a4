"""The race runs, and the published figures are the measured ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.postgres_server import Server

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "benchmarks"


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / program), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


DEEP = [("raw-sqlite", "A"), ("own-sql", "A"), ("own-sql", "B"), ("turnwise", "B"), ("turnwise", "C")]


@pytest.mark.parametrize(
    ("contestant", "metric"), [("turnwise", "A"), *(pytest.param(*one, marks=pytest.mark.deep) for one in DEEP)]
)
def test_contestant_runs_the_agreed_turn(contestant: str, metric: str, tmp_path: Path) -> None:
    result = json.loads(run("measure.py", contestant, metric, "3", str(tmp_path)))
    assert result["ms"] > 0
    assert result["stored_kb"] > 0


@pytest.mark.deep
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_many_chats_are_measured(store: str, tmp_path: Path) -> None:
    """The table shows each operation for each size, and the last size beside the first."""
    figures = json.loads(run("many_chats.py", store, "50", str(tmp_path)))
    assert all(taken > 0 for taken in figures.values())
    twice = {operation: 2 * taken for operation, taken in figures.items()}
    medians = {"turnwise": {f"H {store} 50": figures, f"H {store} 1000": twice}}
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"contestants": {}, "medians": medians}))
    *_, first, last, ratio = run("run.py", "--from", str(results)).splitlines()
    assert first.startswith("| 50 chats ")
    assert last.startswith("| 1,000 chats ")
    assert {cell.strip() for cell in ratio.split("|")[2:-1]} == {"2.00"}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("command", "metric", "line"),
    [
        ("long_chat.py calls sqlite 2", "K sqlite calls", "K  turnwise, sqlite calls: "),
        ("memory.py resting 20", "I resting", "I  turnwise, memory, chats resting: "),
        ("orphans.py sqlite 2 20", "J sqlite 2", "J  turnwise, sqlite, workers: 2; "),
        ("orphans.py postgres 2 20", "J postgres 2", "J  turnwise, postgres, workers: 2; "),
        ("service_load.py postgres 0.5", "L postgres", "L  turnwise, postgres, 10 streams of 4 chats, "),
    ],
)
def test_program_measures(
    command: str, metric: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Server
) -> None:
    """The load of a service also fails unless every stream has every event once."""
    monkeypatch.setenv("TURNWISE_BENCH_POSTGRES", postgres.address)
    for name, value in {"CHATS": "4", "STREAMS": "10", "CALM": "0.2", "GRACE": "0.1"}.items():
        monkeypatch.setenv(f"TURNWISE_BENCH_{name}", value)
    figures = json.loads(run(*command.split(), str(tmp_path)))
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"contestants": {}, "medians": {"turnwise": {metric: figures}}}))
    assert run("run.py", "--from", str(results)).splitlines()[-1].startswith(line)


def test_published_drawing_shows_the_results(tmp_path: Path) -> None:
    run("run.py", "--from", str(PUBLISHED / "results.json"), "--plot", str(tmp_path / "race.svg"))
    assert (tmp_path / "race.svg").read_text() == (PUBLISHED / "race.svg").read_text()


def test_published_table_shows_the_results() -> None:
    table = run("run.py", "--from", str(PUBLISHED / "results.json")).split("\n\n")[0]
    assert table in (PUBLISHED / "README.md").read_text()
