"""`turnwise replay`: a log step by step, on a screen of any width, and all at once where nobody watches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from support.logged_life import LOG, TEXT
from support.terminal import Keyboard, Terminal
from turnwise import ChatState, Engine
from turnwise.cli.step_view import state_picture
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


def test_replay_prints_all_steps_into_a_pipe(terminal: Terminal) -> None:
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


def test_replay_json_has_steps_and_verdict(terminal: Terminal, log: Path) -> None:
    told = json.loads(terminal.run("replay", str(log), "--json").out)
    assert told["verdict"]["ok"]
    assert [step["record"]["version"] for step in told["steps"]] == [record.version for record in LOG]
    assert told["steps"][0]["after"] is None
    assert all(step["after"] for step in told["steps"][1:])
    assert all(step["problem"] is None for step in told["steps"])
    lines = [json.dumps(step["record"], sort_keys=True, separators=(",", ":")) for step in told["steps"]]
    assert lines == TEXT.splitlines()[1:-1]


def test_replay_stops_at_the_first_bad_record(terminal: Terminal, log: Path) -> None:
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
def test_replay_of_no_log_exits_1(terminal: Terminal, log: Path, content: str) -> None:
    log.write_text(content)
    told = terminal.run("replay", str(log))
    assert (told.code, told.err) == (1, "")
    assert "not sound" in told.out


@pytest.mark.parametrize("arguments", [["none.jsonl"], ["cffff"], ["last", "--delay", "-1"], []])
def test_replay_misuse_exits_2(terminal: Terminal, arguments: list[str]) -> None:
    terminal.run("migrate")
    assert terminal.run("replay", *arguments).code == 2


def test_replay_keys(watched: Keyboard) -> None:
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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("state", ChatState)
def test_replay_picture_marks_the_state(state: ChatState, width: int) -> None:
    picture = "\n".join(line.plain for line in state_picture(state, "streaming", width=width))
    assert sorted(picture.replace("▶", "").replace("◦", "").split()) == sorted(ChatState)
    assert f"▶ {state}" in picture
    assert picture.count("▶") == 1
    assert ("◦ streaming" in picture) == (state != "streaming")
