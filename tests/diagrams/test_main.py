"""The committed drawings are current, and the check can fail."""

from pathlib import Path

import pytest

from turnwise.diagrams.__main__ import main


def test_committed_drawings_match_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails: `python -m turnwise.diagrams`, look at the picture, commit it."""
    assert main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", ["src/turnwise/diagrams/rendered/machine.svg", "docs/machine/matrix.md"])
def test_check_names_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["--out", str(tmp_path)]) == 0
    path = tmp_path / name
    path.write_text(path.read_text().replace("send_message", "sent_massage", 1))
    capsys.readouterr()
    assert main(["--check", "--out", str(tmp_path)]) == 1
    stale, _ = capsys.readouterr().out.splitlines()
    assert stale == f"{path} is not current"


def test_check_writes_nothing(tmp_path: Path) -> None:
    assert main(["--check", "--out", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())
