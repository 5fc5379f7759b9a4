"""`turnwise diagram`: where a drawing goes, and that no terminal is fed with the bytes of a picture."""

import io
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from turnwise import Engine
from turnwise.cli.diagram import diagram
from turnwise.diagrams import mermaid, slide, table
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.errors import SettingsError

BEGINNINGS: dict[Any, bytes] = {"mermaid": b"stateDiagram-v2", "svg": b"<svg", "png": b"\x89PNG\r\n", "json": b"{\n"}


class Screen(io.TextIOWrapper):
    """Where a command prints, which may be watched."""

    def __init__(self, *, watched: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._watched = watched

    def isatty(self) -> bool:
        return self._watched

    @property
    def printed(self) -> bytes:
        return self.buffer.getvalue()


def test_binary_drawing_is_not_printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for form, beginning in BEGINNINGS.items():
        for watched in (True, False):
            screen = Screen(watched=watched)
            monkeypatch.setattr(sys, "stdout", screen)
            if form == "png" and watched:
                with pytest.raises(SettingsError, match="a PNG is nothing to read"):
                    diagram(form="png", simple=True)
                assert screen.printed == b""
            else:
                diagram(form=form, simple=form == "png")
                assert screen.printed.startswith(beginning)


@pytest.fixture
def chat_url(tmp_path: Path) -> str:
    """Return the URL of a store that holds one chat, which has had one turn."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"

    async def live() -> None:
        async with Engine(url, model=ScriptedModel(["hi"])) as engine:
            await engine.ask((await engine.create_chat()).id, "hello")

    anyio.run(live)
    return url


@pytest.mark.parametrize(
    ("show", "words"),
    [
        ("machine", b"The chat stands in waiting"),
        ("path", b"waiting</text>"),
        ("timeline", b"step 1, attempt 1"),
        ("sticker", b"<title>turnwise: waiting</title>"),
    ],
)
def test_diagram_options_choose_the_drawing(tmp_path: Path, chat_url: str, show: Any, words: bytes) -> None:
    diagram("last", store=chat_url, show=show, out=tmp_path / "drawing.svg")
    assert words in (tmp_path / "drawing.svg").read_bytes()


def test_simple_machine_highlights_the_chat_state(tmp_path: Path, chat_url: str) -> None:
    for name, drawn in (("drawing.svg", slide("waiting")), ("drawing.mmd", mermaid("waiting", simple=True))):
        diagram("last", store=chat_url, simple=True, out=tmp_path / name)
        assert (tmp_path / name).read_text() == drawn
    diagram(show="table", out=tmp_path / "table.svg")
    assert (tmp_path / "table.svg").read_text() == table()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"show": "timeline"}, "a timeline is that of a chat"),
        ({"show": "sticker"}, "a sticker is that of a chat"),
        ({"show": "table", "chat": "last"}, "the same for every chat"),
        ({"show": "table", "simple": True}, "not the table"),
        ({"show": "path", "chat": "last", "form": "mermaid"}, "the path is drawn as svg or png"),
        ({"simple": True, "form": "json"}, "the same for every chat"),
    ],
)
def test_conflicting_options_open_nothing(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        diagram(**options, store=f"sqlite:///{tmp_path / 'none.db'}", out=tmp_path / "drawing")
    assert list(tmp_path.iterdir()) == []


def test_diagram_writes_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the form that is named, else in that of the suffix."""
    screen = Screen(watched=True)
    monkeypatch.setattr(sys, "stdout", screen)
    for form, name, drawn in (("png", "drawing", "png"), (None, "a.SVG", "svg"), (None, "a", "mermaid")):
        diagram(form=form, simple=form == "png", out=tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(BEGINNINGS[drawn])
        assert screen.printed.decode().endswith(f"wrote {tmp_path / name}\n")
    for form, name in (("svg", "a.png"), (None, "a.jpg")):
        with pytest.raises(SettingsError):
            diagram(form=form, out=tmp_path / name)
        assert not (tmp_path / name).exists()
