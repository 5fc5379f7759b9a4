"""A prompt misses no Ctrl-C."""

from __future__ import annotations

import io

import pytest

from turnwise.cli.keyboard import typed


def test_piped_line_is_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever pipes a file in has seldom written it, and the model gets it as it is."""
    line = "hello \x1b]52;c;cHduZWQ=\x1b\\ there\u202e"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n"))
    assert typed("") == line
    assert capsys.readouterr().out == "hello \\x1b]52;c;cHduZWQ=\\x1b\\ there\\u202e\n"
