"""`turnwise demo` keeps its word, from any folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from support.terminal import Finished, Terminal
from turnwise.cli.demo.cast import FILES_READ, MOST_READ, PACKAGE, folder_to_read, readable
from turnwise.cli.demo.stage import DemoFailed, Stage


def test_every_promise_is_seen_to_be_kept(played: Finished) -> None:
    assert played.code == 0, played.out + played.err
    assert played.err == ""
    words = played.words
    _, _, summary = words.rpartition("promised seen")
    assert summary.count("✔") == 9
    for seen in (
        "the second post was a replay",
        "exactly these are kept",
        "compacted once",
        "was killed",
        "take_note ran once: 1 line in notes.txt",
        "not sound at version",
    ):
        assert seen in words


def test_in_an_empty_folder_it_reads_turnwise_itself(played: Finished, demo: Terminal) -> None:
    assert str(PACKAGE) in played.out
    assert sorted(path.name for path in demo.folder.iterdir()) == ["demo-out"]


def test_it_leaves_a_log_that_verifies_and_a_drawing_with_the_state_lit(played: Finished, demo: Terminal) -> None:
    assert played.code == 0
    out = demo.folder / "demo-out"
    drawing = (out / "machine.svg").read_text()
    assert 'class="state current" data-state="waiting"' in drawing
    assert demo.run("verify", "demo-out/audit.jsonl").code == 0


def test_the_killed_turn_ran_in_two_processes(played: Finished, demo: Terminal) -> None:
    assert played.code == 0
    records = json.loads(demo.run("audit", "last", "--json").out)
    workers = [record["actor"] for record in records if record["turn"] == 5 and record["trigger"] == "claimed"]
    assert len(workers) == len(set(workers)) == 2
    assert "lease_expired" in {record["trigger"] for record in records}


def test_a_broken_promise_ends_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """A check that cannot fail is no check."""
    stage = Stage(Console(width=80))
    stage.promise("water is wet", "it was", kept=True)
    with pytest.raises(DemoFailed, match="promised was that fire is cold, but it burnt"):
        stage.promise("fire is cold", "it burnt", kept=False)
    assert "it was" in capsys.readouterr().out


def test_a_folder_with_enough_text_is_read_itself(tmp_path: Path) -> None:
    for number in range(FILES_READ):
        (tmp_path / f"page{number}.md").write_text("a" * MOST_READ)
    assert folder_to_read(tmp_path) == tmp_path


def test_hidden_short_and_binary_files_are_not_chosen(tmp_path: Path) -> None:
    (tmp_path / ".env.md").write_text("a" * MOST_READ)
    (tmp_path / "short.md").write_text("a")
    (tmp_path / "not text.md").write_text("a" * MOST_READ)
    (tmp_path / "picture.md").write_bytes(b"\xff" * MOST_READ)
    (tmp_path / "kept.txt").write_text("a" * MOST_READ)
    assert readable(tmp_path) == ["kept.txt"]
    assert folder_to_read(tmp_path) == PACKAGE
