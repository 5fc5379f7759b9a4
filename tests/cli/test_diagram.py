"""`turnwise diagram`: where a drawing goes, and that no terminal is fed with the bytes of a picture."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.cli.diagram import diagram
from turnwise.states.errors import SettingsError

BEGINNINGS = {"mermaid": b"stateDiagram-v2", "svg": b"<svg", "png": b"\x89PNG\r\n"}


class Screen(io.TextIOWrapper):
    """Where a command prints, which may be watched."""

    def __init__(self, *, watched: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._watched = watched

    def isatty(self) -> bool:
        return self._watched

    @property
    def printed(self) -> bytes:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


@pytest.mark.parametrize("form", BEGINNINGS)
@pytest.mark.parametrize("watched", [True, False])
def test_a_drawing_is_printed_unless_it_is_a_picture_and_somebody_watches(
    monkeypatch: pytest.MonkeyPatch, form: Any, *, watched: bool
) -> None:
    screen = Screen(watched=watched)
    monkeypatch.setattr(sys, "stdout", screen)
    if form == "png" and watched:
        with pytest.raises(SettingsError, match="a PNG is nothing to read"):
            diagram(form=form)
        assert screen.printed == b""
    else:
        diagram(form=form)
        assert screen.printed.startswith(BEGINNINGS[form])


@pytest.mark.parametrize("form", BEGINNINGS)
def test_a_drawing_goes_to_its_file_though_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    screen = Screen(watched=True)
    monkeypatch.setattr(sys, "stdout", screen)
    diagram(form=form, out=tmp_path / "drawing")
    assert (tmp_path / "drawing").read_bytes().startswith(BEGINNINGS[form])
    assert screen.printed.decode() == f"wrote {tmp_path / 'drawing'}\n"
