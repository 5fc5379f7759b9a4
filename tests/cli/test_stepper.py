"""Stepping through a log: every key, and what goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from support.logged_life import LOG, TEXT
from support.terminal import Keyboard, Terminal
from turnwise import Verdict
from turnwise.cli.step_view import steps_of
from turnwise.cli.stepper import Stepper


@contextmanager
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def test_it_plays_by_itself_and_ends(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(TEXT)
    with Keyboard(terminal, ("replay", "log.jsonl", "--delay", "0.01")) as typing:
        typing.see("✓ sound")
        assert typing.process.wait(60) == 0


def test_what_goes_on_by_itself_shows_every_step_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    with keyboard():
        stepper = Stepper(steps_of(LOG, Verdict(ok=True)), 0.001)
        move = stepper._move
        monkeypatch.setattr(stepper, "_move", lambda by: (move(by), places.append(stepper._place)))
        stepper.run()
    assert places == [*range(1, len(LOG))]


def test_who_goes_back_stops_the_play() -> None:
    stepper = Stepper(steps_of(LOG, Verdict(ok=True)), 0.5)
    assert (stepper._place, stepper._delay) == (0, 0.5)
    for by, place, delay in ((1, 1, 0.5), (0, 1, 0.5), (-1, 0, None), (-1, 0, None), (len(LOG), len(LOG) - 1, None)):
        stepper._move(by)
        assert (stepper._place, stepper._delay) == (place, delay)


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("q", 0),
        ("\x03", 0),
        (" q", 1),
        ("\rq", 1),
        ("\x1b[Cq", 1),
        ("\x1b[F\x1b[Dq", len(LOG) - 2),
        ("\x1b[F\x7fq", len(LOG) - 2),
        ("  \x1b[Hq", 0),
    ],
    ids=["q", "Ctrl-C", "space", "enter", "right", "end and left", "end and backspace", "home"],
)
def test_each_key_goes_where_it_says(typed: str, place: int) -> None:
    with keyboard() as keys:
        stepper = Stepper(steps_of(LOG, Verdict(ok=True)))
        keys.send_text(typed)
        stepper.run()
    assert stepper._place == place
