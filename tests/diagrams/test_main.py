"""The committed drawings are current, and the check that says so can fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.diagrams import mermaid, svg
from turnwise.diagrams.__main__ import main


@pytest.fixture
def copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["--out", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def test_committed_drawings_match_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails: `python -m turnwise.diagrams`, look at the picture, commit it."""
    assert main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        "src/turnwise/diagrams/rendered/machine.svg",
        "src/turnwise/diagrams/rendered/simple.mmd",
        "src/turnwise/diagrams/rendered/machine.json",
        "docs/machine/matrix.md",
    ],
)
def test_check_names_and_shows_a_change(copy: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = copy / name
    path.write_text(path.read_text().replace("send_message", "sent_massage", 1))
    assert main(["--check", "--out", str(copy)]) == 1
    said = capsys.readouterr().out
    assert f"{name} is not current" in said
    assert "sent_massage" in said
    assert len(said.splitlines()) < 20
    shown = said.split("declared\n")[1].splitlines()[:-1]
    assert all(line.startswith(("@@", "-", "+")) for line in shown), "the lines that differ, and no others"


def test_check_writes_nothing(tmp_path: Path) -> None:
    assert main(["--check", "--out", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "draw"), [("mermaid", mermaid), ("svg", svg)])
def test_state_option_prints_one_drawing(
    name: str, draw: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--state", "streaming", "--format", name]) == 0
    assert capsys.readouterr().out == draw("streaming")
