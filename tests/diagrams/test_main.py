"""The committed drawings are current, and the check that says so can fail."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.diagrams import mermaid, svg
from turnwise.diagrams.__main__ import PACKAGE, drawings, main, repository


@pytest.fixture
def copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["--out", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def test_the_committed_drawings_are_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails: `python -m turnwise.diagrams`, look at the picture, commit it."""
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_what_was_written_passes_the_check(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--out", str(copy)]) == 0
    assert "all 7 drawings" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        "diagrams/rendered/machine.svg",
        "diagrams/rendered/simple.mmd",
        "diagrams/rendered/machine.json",
        "docs/machine/matrix.md",
    ],
)
def test_a_planted_change_is_named_and_shown(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = copy / name
    path.write_text(path.read_text().replace("send_message", "sent_massage", 1))
    assert main(["--check", "--out", str(copy)]) == 1
    said = capsys.readouterr().out
    assert f"{name} is not current" in said
    assert "sent_massage" in said
    assert len(said.splitlines()) < 20
    shown = said.split("declared\n")[1].splitlines()[:-1]
    assert all(line.startswith(("@@", "-", "+")) for line in shown), "the lines that differ, and no others"


def test_a_missing_drawing_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "diagrams" / "rendered" / "machine.mmd").unlink()
    assert main(["--check", "--out", str(copy)]) == 1
    assert "diagrams/rendered/machine.mmd is missing" in capsys.readouterr().out


def test_the_check_writes_nothing(tmp_path: Path) -> None:
    assert main(["--check", "--out", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())


def test_an_installed_package_checks_the_drawings_it_ships_and_no_page(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "turnwise" / "diagrams"
    shutil.copytree(PACKAGE / "rendered", package / "rendered")
    assert repository(package) is None
    shipped = drawings(None, package)
    assert {path.relative_to(package).as_posix() for path in shipped} == {
        "rendered/machine.svg",
        "rendered/machine.mmd",
        "rendered/simple.svg",
        "rendered/simple.mmd",
        "rendered/table.svg",
        "rendered/machine.json",
    }
    assert all(path.read_text() == text for path, text in shipped.items())


def test_an_installed_package_does_not_write_into_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("turnwise.diagrams.__main__.repository", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "--out DIR" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "draw"), [("mermaid", mermaid), ("svg", svg)])
def test_one_drawing_is_printed_with_its_state_lit(
    name: str, draw: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--state", "streaming", "--format", name]) == 0
    assert capsys.readouterr().out == draw("streaming")


def test_an_unknown_state_is_a_misuse_that_names_the_states(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--state", "dreaming"])
    assert ended.value.code == 2
    assert "the states are waiting, pending" in capsys.readouterr().err


def test_each_file_that_is_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "not" / "there"
    assert main(["--out", str(root)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"wrote {path}" for path in drawings(root)]


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    for option, explained in {
        "--check": "write nothing; exit 1 and name the files that are stale",
        "--out DIR": "the root to write or check below, not the checkout",
        "--state NAME": "print one drawing with this state lit",
        "--format {mermaid,svg}": "print one drawing (svg unless told)",
    }.items():
        assert f"{option} {explained}" in said
    assert "usage: python -m turnwise.diagrams" in said
    assert "Draw the declared machine." in said
