"""`turnwise replay`: a log step by step, on a screen of any width, and all at once where nobody watches."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
import typer

from support.logged_life import LOG, TEXT
from support.terminal import Keyboard, Terminal
from turnwise import ChatState, Engine, Verdict
from turnwise.cli import replay as replay_
from turnwise.cli import stepper as stepper_
from turnwise.cli.step_view import Step, state_picture, step_lines, steps_of
from turnwise.providers.scripted import ScriptedModel

HOSTILE = "safe\u202egnp.exe\x1b]0;owned\x07\x9b2J\u2066end"
WIDTHS = (40, 80, 120)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log.jsonl"
    file.write_text(TEXT)
    return file


@pytest.fixture
def watched(terminal: Terminal, log: Path) -> Iterator[Keyboard]:
    with Keyboard(terminal, ("replay", str(log))) as keyboard:
        keyboard.watch("1/")
        yield keyboard


def lived(terminal: Terminal) -> str:
    async def live() -> str:
        async with Engine(f"sqlite:///{terminal.folder}/turnwise.db", model=ScriptedModel("ok")) as engine:
            chat = await engine.create_chat()
            await engine.ask(chat.id, "hi")
            await engine.rename(chat.id, "t", actor=f"jane {HOSTILE}")
            return chat.id

    return anyio.run(live)


def test_all_steps_are_printed_where_nobody_watches(terminal: Terminal) -> None:
    chat_id = lived(terminal)
    told = terminal.run("replay", chat_id)
    assert told.code == 0
    records = json.loads(terminal.run("audit", chat_id, "--json").out)
    for record in records:
        assert f"{record['version']}/{len(records)} {record['trigger']}" in told.out
    for words in ("waiting → pending", "by client", "writes message m1", "turn 1 · step 1", "✓ sound"):
        assert words in told.out
    assert not set(told.out) & set(HOSTILE) - set("safegnp.exe]0;owned2Jend")
    assert r"\u202e" in told.out


def test_programs_get_the_steps_and_the_verdict(terminal: Terminal, log: Path) -> None:
    told = json.loads(terminal.run("replay", str(log), "--json").out)
    assert told["verdict"]["ok"]
    assert [step["record"]["version"] for step in told["steps"]] == [record.version for record in LOG]
    assert told["steps"][0]["after"] is None
    assert all(step["after"] for step in told["steps"][1:])
    assert all(step["problem"] is None for step in told["steps"])
    lines = [json.dumps(step["record"], sort_keys=True, separators=(",", ":")) for step in told["steps"]]
    assert lines == TEXT.splitlines()[1:-1]


@pytest.mark.parametrize("place", [0, 1, 3, len(LOG), len(LOG) + 1])
def test_lines_that_hold_nothing_are_left_out_as_the_verdict_leaves_them(
    terminal: Terminal, log: Path, place: int
) -> None:
    """Or a log would be called sound of which only the beginning was printed."""
    lines = TEXT.splitlines()
    log.write_text("\n".join([*lines[:place], "", " \t\r", *lines[place:]]))
    told = json.loads(terminal.run("replay", str(log), "--json").out)
    assert told["verdict"]["ok"]
    assert len(told["steps"]) == len(LOG)


def test_a_log_that_is_not_sound_ends_where_it_is_wrong(terminal: Terminal, log: Path) -> None:
    log.write_text(TEXT.replace('"trigger":"archived"', '"trigger":"unarchived"'))
    place = next(record.version for record in LOG if record.trigger == "archived")
    told = terminal.run("replay", str(log))
    assert told.code == 1
    assert f"{place}/{place} unarchived" in told.out
    assert "✗ Version" in told.out
    assert f"not sound at version {place}" in told.words
    steps = json.loads(terminal.run("replay", str(log), "--json").out)["steps"]
    assert [step["problem"] is None for step in steps] == [True] * (place - 1) + [False]


@pytest.mark.parametrize("content", ["", "{}", "\x00\xff", '{"format":"turnwise-audit/1","chat_id":"c"}\nx'])
def test_what_is_no_log_is_told_and_ends_in_1(terminal: Terminal, log: Path, content: str) -> None:
    log.write_text(content)
    told = terminal.run("replay", str(log))
    assert (told.code, told.err) == (1, "")
    assert "not sound" in told.out


@pytest.mark.parametrize("arguments", [["none.jsonl"], ["cffff"], ["last", "--delay", "-1"], []])
def test_misuse_ends_in_2(terminal: Terminal, arguments: list[str]) -> None:
    terminal.run("migrate")
    assert terminal.run("replay", *arguments).code == 2


def test_keys_go_on_and_back_and_leave(watched: Keyboard) -> None:
    count = len(LOG)
    shown = watched.watch(f"1/{count} create")
    assert any("▶ waiting" in line for line in shown)
    for keys, words in (
        (" ", f"2/{count} send_message"),
        ("\r", f"3/{count} claimed"),
        ("\x1b[C", f"4/{count} attempt_started"),
        ("\x1b[D", f"3/{count} claimed"),
        ("\x1b[F", f"{count}/{count} "),
        (" ", f"{count}/{count} "),
        ("\x1b[D", f"{count - 1}/{count} "),
        ("\x1b[H", f"1/{count} create"),
        ("\x1b[D", f"1/{count} create"),
    ):
        watched.type(keys)
        watched.watch(words)
    watched.type("q")
    watched.see("✓ sound")
    assert watched.process.wait(60) == 0


def test_ctrl_c_leaves_and_gives_the_screen_back(watched: Keyboard) -> None:
    watched.type("\x03")
    watched.see("✓ sound")
    assert watched.process.wait(60) == 0


@pytest.mark.parametrize("typed_at", [True, False])
@pytest.mark.parametrize("printed_on", [True, False])
@pytest.mark.parametrize("content", [TEXT, ""])
def test_steps_are_gone_through_only_where_there_are_some_and_somebody_types_and_watches(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
    *,
    typed_at: bool,
    printed_on: bool,
) -> None:
    gone_through: list[tuple[int, float | None]] = []

    class Noted:
        def __init__(self, steps: Sequence[Step], delay: float | None) -> None:
            self._noted = (len(steps), delay)

        def run(self) -> None:
            gone_through.append(self._noted)

    log.write_text(content)
    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "isatty", lambda: typed_at)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(replay_.console, "_force_terminal", printed_on)
    monkeypatch.setattr(stepper_, "Stepper", Noted)
    with contextlib.nullcontext() if content else pytest.raises(typer.Exit):
        replay_.replay(str(log), delay=0.5)
    watched = bool(content) and typed_at and printed_on
    assert gone_through == ([(len(LOG), 0.5)] if watched else [])
    assert ("create" in capsys.readouterr().out) is (bool(content) and not watched)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    for step in steps_of(LOG, Verdict(ok=False, problem=HOSTILE * 9, position=len(LOG))):
        lines = step_lines(step, of=len(LOG), width=width)
        lines += state_picture(step.record.target, step.record.source, width=width)
        assert max(line.cell_len for line in lines) <= width
        assert "\n" not in "".join(line.plain for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("state", ChatState)
def test_the_picture_has_every_state_once_and_marks_the_current_one(state: ChatState, width: int) -> None:
    picture = "\n".join(line.plain for line in state_picture(state, "streaming", width=width))
    assert sorted(picture.replace("▶", "").replace("◦", "").split()) == sorted(ChatState)
    assert f"▶ {state}" in picture
    assert picture.count("▶") == 1
    assert ("◦ streaming" in picture) == (state != "streaming")


def test_many_writes_leave_room_for_the_rest() -> None:
    step = max(steps_of(LOG, Verdict(ok=True)), key=lambda one: len(one.record.writes))
    assert len(step.record.writes) > 3
    lines = [line.plain for line in step_lines(step, of=9, width=80, most=8)]
    assert len(lines) == 8
    assert lines[-1].startswith("  … and")
    assert step.after is not None
    assert step.after >= timedelta(0)
