"""The question before what cannot be taken back: only a plain yes goes on."""

from __future__ import annotations

import io

import pytest
import typer

from turnwise.cli.confirm import confirm
from turnwise.states.errors import SettingsError

QUESTION = "Erase [/m], [bold]m, " + ", ".join(f"m{number}" for number in range(100)) + ", for good?"


class Keys(io.StringIO):
    """What a person types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("typed", ["y\n", "yes\n", " YES \n", "Y"])
def test_yes_confirms(typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Keys(typed))
    confirm(QUESTION, done="erased")
    assert capsys.readouterr() == ("", f"{QUESTION} [y/N] "), "in one line, however long"


@pytest.mark.parametrize("typed", ["", "\n", "n\n", "no\n", "ye\n", "yes please\n", "n\ny\n"])
def test_other_answers_exit_1(typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Keys(typed))
    with pytest.raises(typer.Exit) as left:
        confirm(QUESTION, done="erased")
    assert left.value.exit_code == 1
    assert capsys.readouterr().err == f"{QUESTION} [y/N] Nothing was erased.\n"


def test_confirm_without_terminal_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    with pytest.raises(SettingsError, match=r"--yes.*what is erased does not come back"):
        confirm(QUESTION, done="erased")
    assert capsys.readouterr() == ("", "")
