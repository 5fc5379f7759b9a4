"""The race can be run, and what is published is what was measured."""

from __future__ import annotations

import importlib
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


@pytest.mark.parametrize(
    ("contestant", "metric"),
    [(contestant, metric) for contestant in ("turnwise", "raw-sqlite") for metric in "ABC"]
    + [("own-sql", "A"), ("own-sql", "B")],
)
def test_a_contestant_does_the_turn_that_was_agreed_on(contestant: str, metric: str, tmp_path: Path) -> None:
    result = json.loads(run("measure.py", contestant, metric, "3", str(tmp_path)))
    assert result["ms"] > 0
    assert result["stored_kb"] > 0


def test_deltas_are_measured_beyond_the_model_s_own_time(tmp_path: Path) -> None:
    assert "us_per_delta" in json.loads(run("measure.py", "turnwise", "D", "100", str(tmp_path)))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_store_of_many_chats_is_filled_and_measured(store: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("what", ["calls", "messages", "megabytes"])
def test_a_long_chat_is_measured_while_it_is_short_and_when_it_is_long(what: str, tmp_path: Path) -> None:
    figures = json.loads(run("long_chat.py", what, "sqlite", "2", str(tmp_path)))
    assert all(taken > 0 for taken in figures.values())
    assert shown(tmp_path, {f"K sqlite {what}": figures}).startswith(f"K  turnwise, sqlite {what}: ")


@pytest.mark.parametrize("what", ["resting", "streaming"])
def test_the_memory_of_chats_is_measured(what: str, tmp_path: Path) -> None:
    figures = json.loads(run("memory.py", what, "20", str(tmp_path)))
    assert shown(tmp_path, {f"I {what}": figures}).startswith(f"I  turnwise, memory, chats {what}: ")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a store of the race, and a server that runs already: none need be started for each measurement."""
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        monkeypatch.setenv("TURNWISE_BENCH_POSTGRES", server.address)
    return str(request.param)


def test_orphans_are_taken_over_and_the_time_is_measured(store: str, tmp_path: Path) -> None:
    figures = json.loads(run("orphans.py", store, "2", "20", str(tmp_path)))
    assert shown(tmp_path, {f"J {store} 2": figures}).startswith(f"J  turnwise, {store}, workers: 2; ")


def test_a_service_is_measured_under_load(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream tells every event once, or the measurement fails."""
    monkeypatch.setenv("TURNWISE_BENCH_CHATS", "4")
    monkeypatch.setenv("TURNWISE_BENCH_STREAMS", "10")
    monkeypatch.setenv("TURNWISE_BENCH_CALM", "0.2")
    monkeypatch.setenv("TURNWISE_BENCH_GRACE", "0.1")
    figures = json.loads(run("service_load.py", store, "0.5", str(tmp_path)))
    assert 0 < figures["median_ms"] <= figures["p99_ms"] <= figures["worst_ms"]
    assert shown(tmp_path, {f"L {store}": figures}).startswith(f"L  turnwise, {store}, 10 streams of 4 chats, ")


def shown(folder: Path, medians: dict[str, dict[str, float]]) -> str:
    """Return the last line that is shown of such results."""
    results = folder / "results.json"
    results.write_text(json.dumps({"contestants": {}, "medians": {"turnwise": medians}}))
    return run("run.py", "--from", str(results)).splitlines()[-1]


def test_the_published_drawing_shows_the_published_results(tmp_path: Path) -> None:
    run("run.py", "--from", str(PUBLISHED / "results.json"), "--plot", str(tmp_path / "race.svg"))
    assert (tmp_path / "race.svg").read_text() == (PUBLISHED / "race.svg").read_text()


def test_the_published_table_shows_the_published_results() -> None:
    table = run("run.py", "--from", str(PUBLISHED / "results.json")).split("\n\n")[0]
    assert table in (PUBLISHED / "README.md").read_text()


def test_the_published_growth_is_what_was_measured() -> None:
    page = (PUBLISHED.parent / "scaling.md").read_text()
    tables = run("run.py", "--from", str(PUBLISHED / "growth.json")).strip("\n").split("\n\n")
    assert len(tables) == 3, "memory, orphans and long chats; many chats on either store"
    assert all(table in page for table in tables)


@pytest.mark.parametrize(
    ("option", "value", "known"), [("--only", "AZ", "A, B, C"), ("--peers", "raw,turnwise", "raw-sqlite")]
)
def test_what_does_not_exist_is_refused_before_anything_is_measured(option: str, value: str, known: str) -> None:
    refused = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run.py"), option, value],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert known in refused.stderr
    assert "Traceback" not in refused.stderr


def test_what_fails_is_left_out_and_loses_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    race = importlib.import_module("run")
    todo = [("turnwise", "L sqlite", ["nowhere.py"]), ("raw-sqlite", "A", ["measure.py", "raw-sqlite", "A", "1"])]
    measured = race.medians(race.race(todo, 1))
    assert [*measured] == ["raw-sqlite"]
    assert measured["raw-sqlite"]["A"]["ms"] > 0
