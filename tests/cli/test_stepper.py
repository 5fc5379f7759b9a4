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


@pytest.mark.deep
def test_replay_plays_by_itself(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(TEXT)
    with Keyboard(terminal, ("replay", "log.jsonl", "--delay", "0.01")) as typing:
        typing.see("✓ sound")
        assert typing.process.wait(60) == 0


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
def test_stepper_keys(typed: str, place: int) -> None:
    with keyboard() as keys:
        stepper = Stepper(steps_of(LOG, Verdict(ok=True)))
        keys.send_text(typed)
        stepper.run()
    assert stepper._place == place
