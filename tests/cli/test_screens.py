"""What stands on a screen: narrow ones, hostile words, and the chat that was meant."""

from __future__ import annotations

import json

import anyio
import pytest

from support.terminal import Terminal
from turnwise import ClientTool, Engine, ModelError
from turnwise.cli import style
from turnwise.providers.scripted import Call, Reply, ScriptedModel

HOSTILE = "safe\u202egnp.exe\x1b]0;owned\x07\x9b2J\u2066\u200fend"
LOOK = ClientTool("look", "Look.", {"type": "object"})
STEERING = [character for character in HOSTILE if not character.isalnum() and character not in ".;]"]


def store_of(terminal: Terminal) -> str:
    return f"sqlite:///{terminal.folder}/turnwise.db"


def lived(terminal: Terminal) -> list[str]:
    """Fill the terminal's store with a chat in each of the resting states, and hostile words; return their ids."""

    async def live() -> list[str]:
        calls = Reply(HOSTILE, calls=[Call("look", {"name" + HOSTILE: HOSTILE}, id="c1")])
        replies = [Reply(HOSTILE), calls, Reply(error=ModelError("quota", message=HOSTILE))]
        async with Engine(store_of(terminal), model=ScriptedModel(replies)) as engine:
            ids = []
            for _ in replies:
                chat = await engine.create_chat(title=HOSTILE, system=HOSTILE, client_tools=[LOOK])
                await engine.ask(chat.id, HOSTILE)
                ids.append(chat.id)
            await engine.rename(ids[0], HOSTILE, actor=f"jane {HOSTILE}")
            await engine.archive(ids[0], actor="ops:team:jane")
            return ids

    return anyio.run(live)


SEEN = [
    ("list",),
    ("show", "{}"),
    ("audit", "{}"),
    ("replay", "{}"),
    ("explain", "{}"),
    ("verify", "{}"),
    ("resume", "{}"),
    ("show", HOSTILE),
]
MACHINE = [
    ("list", "--json"),
    ("show", "{}", "--json"),
    ("audit", "{}", "--json"),
    ("replay", "{}", "--json"),
    ("explain", "{}", "--json"),
]


@pytest.mark.parametrize("place", range(3))
def test_chat_text_cannot_control_the_terminal(terminal: Terminal, place: int) -> None:
    """Neither does it turn a line around, so that a file's name looks like another."""
    chat_id = lived(terminal)[place]
    for arguments in [*SEEN, *MACHINE]:
        told = terminal.run(*(word.format(chat_id) for word in arguments))
        assert [character for character in STEERING if character in told.out + told.err] == [], arguments
    assert r"\u202e" in terminal.run("show", chat_id).out


def test_json_output_is_unescaped(terminal: Terminal) -> None:
    chat_id = lived(terminal)[0]
    assert json.loads(terminal.run("show", chat_id, "--json").out)["chat"]["title"] == HOSTILE


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", ["list", "audit", "replay", "explain", "show"])
def test_states_are_whole_on_narrow_screens(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    """The state is what an operator came for."""
    monkeypatch.setattr(style.console, "width", columns)
    *_, chat_id, failed = lived(terminal)
    shown = {}
    for name, wanted in ((chat_id, "requires_action"), (failed, "error")):
        arguments = [command] if command == "list" else [command, name]
        told = terminal.run(*arguments)
        assert told.code == 0, told.err
        shown[wanted] = told.out
        assert max(map(len, told.out.splitlines())) <= max(columns, 43)
    for wanted, text in shown.items():
        assert wanted in text.split() or f"{wanted}" in text, text
        if command in ("list", "audit"):
            assert any(wanted in line.split() for line in text.splitlines()), text


def test_times_have_dates(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    chat_id = lived(terminal)[1]
    monkeypatch.setattr(style.console, "_width", 120)
    monkeypatch.setattr(style.console, "_height", 50)
    at = json.loads(terminal.run("audit", chat_id, "--json").out)[-1]["at"]
    day, time = at[:10], at[11:19]
    assert f"{day} {time}" in terminal.run("audit", chat_id).out
    assert f"{day} {time}" in terminal.run("explain", chat_id).out
    assert "ops:team:jane" in terminal.run("audit", json.loads(terminal.run("list", "--json").out)[-1]["id"]).out


# Which chat


def test_last_is_the_latest_active_chat(terminal: Terminal) -> None:
    first, _, third = lived(terminal)
    assert json.loads(terminal.run("show", "last", "--json").out)["chat"]["id"] == third
    terminal.run("unarchive", first)
    assert terminal.run("send", first, "hi").code == 0
    assert json.loads(terminal.run("show", "last", "--json").out)["chat"]["id"] == first
