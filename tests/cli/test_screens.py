"""What stands on a screen: narrow ones, hostile words, and the chat that was meant."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import anyio
import pytest

from support.sql_by_hand import by_hand
from support.terminal import PROGRAM, Terminal
from turnwise import ClientTool, Engine, ModelError, Settings
from turnwise.cli import chat_argument, style
from turnwise.cli.audit import timeline
from turnwise.cli.chat_argument import attached, chosen_id
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ChatNotFound

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
def test_nothing_that_a_chat_says_steers_the_terminal(terminal: Terminal, place: int) -> None:
    """Neither does it turn a line around, so that a file's name looks like another."""
    chat_id = lived(terminal)[place]
    for arguments in [*SEEN, *MACHINE]:
        told = terminal.run(*(word.format(chat_id) for word in arguments))
        assert [character for character in STEERING if character in told.out + told.err] == [], arguments
    assert r"\u202e" in terminal.run("show", chat_id).out


def test_no_id_of_a_chat_steers_the_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """None that turnwise makes could, but a store holds what its database's users write."""
    monkeypatch.setattr("turnwise.engine.chat_ids.new_chat_id", lambda: HOSTILE)
    anyio.run(_begin, store_of(terminal))
    monkeypatch.setattr(style.console, "width", 200)
    for arguments in (
        *[("list",), ("show", "last"), ("explain", "last"), ("send", "last", "hi"), ("interrupt", "last")],
        *[("resume", "last"), ("chat", "--chat", "last"), ("erase", "last", "--everything", "--yes")],
    ):
        told = terminal.run(*arguments)
        assert [character for character in STEERING if character in told.out + told.err] == [], arguments
        assert told.code == 0, told
    anyio.run(_tamper, store_of(terminal))
    for arguments in (("audit", "last"), ("doctor",), ("doctor", "--repair", "last"), ("delete", "last", "--yes")):
        told = terminal.run(*arguments)
        assert [character for character in STEERING if character in told.out + told.err] == [], arguments


async def _begin(store: str) -> None:
    async with Engine(store, model="demo") as engine:
        await engine.ask((await engine.create_chat()).id, "hello")


async def _tamper(store: str) -> None:
    """Write what steers a terminal into a log, and into a message what is none."""
    await by_hand(store, "UPDATE messages SET body = 'no JSON'")
    for word in ("trigger", "target"):
        await by_hand(store, f"UPDATE audit SET body = json_set(body, '$.{word}', '{HOSTILE}')")  # noqa: S608 - a test's


def test_programs_get_the_very_words(terminal: Terminal) -> None:
    chat_id = lived(terminal)[0]
    assert json.loads(terminal.run("show", chat_id, "--json").out)["chat"]["title"] == HOSTILE


def test_a_screen_is_as_wide_as_its_environment_says(terminal: Terminal) -> None:
    terminal.run("chat", typed="hello\n")
    widest: dict[int | str, int] = {}
    for columns in (40, 80, 0, "²"):
        environment = terminal.environment | {"COLUMNS": str(columns), "LINES": str(columns)}
        command = [*PROGRAM, "explain", "last"]
        done = subprocess.run(command, cwd=terminal.folder, env=environment, capture_output=True, text=True, check=True)
        widest[columns] = max(map(len, done.stdout.splitlines()))
    assert 30 < widest[40] <= 40 < widest[80] <= 80, widest
    assert widest[0] == widest[80], "0 says that nobody knows"
    assert widest["²"] == widest[80], "a digit that is no number says nothing"


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", ["list", "audit", "replay", "explain", "show"])
def test_no_screen_is_too_narrow_for_a_state(
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


def test_times_are_told_with_their_dates(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    chat_id = lived(terminal)[1]
    monkeypatch.setattr(style.console, "_width", 120)
    monkeypatch.setattr(style.console, "_height", 50)
    at = json.loads(terminal.run("audit", chat_id, "--json").out)[-1]["at"]
    day, time = at[:10], at[11:19]
    assert f"{day} {time}" in terminal.run("audit", chat_id).out
    assert f"{day} {time}" in terminal.run("explain", chat_id).out
    assert "ops:team:jane" in terminal.run("audit", json.loads(terminal.run("list", "--json").out)[-1]["id"]).out


# Which chat


def test_last_is_the_chat_that_was_active_last(terminal: Terminal) -> None:
    first, _, third = lived(terminal)
    assert json.loads(terminal.run("show", "last", "--json").out)["chat"]["id"] == third
    terminal.run("unarchive", first)
    assert terminal.run("send", first, "hi").code == 0
    assert json.loads(terminal.run("show", "last", "--json").out)["chat"]["id"] == first


def test_a_chat_is_found_without_reading_the_others(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 chats took seconds, and one that could not be read hid them all."""
    ids = lived(terminal)
    asked: list[Any] = []

    async def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("listed")

    original = SQLiteStore.ids

    async def counted(self: SQLiteStore, *, prefix: str, limit: int, owner: str | None = None) -> list[str]:
        asked.append(limit)
        return await original(self, prefix=prefix, limit=limit, owner=owner)

    monkeypatch.setattr(SQLiteStore, "chats", refuse)
    monkeypatch.setattr(SQLiteStore, "ids", counted)

    async def find() -> None:
        async with attached(store_of(terminal)) as engine:
            for chat_id in ids:
                assert await chosen_id(engine, chat_id) == chat_id
                assert await chosen_id(engine, chat_id[:-1]) == chat_id
            with pytest.raises(chat_argument.AmbiguousChat, match="3 chats"):
                await chosen_id(engine, "c")
            with pytest.raises(ChatNotFound):
                await chosen_id(engine, "")

    anyio.run(find)
    assert max(asked) <= chat_argument.MOST_NAMED + 1


def test_an_id_that_begins_many_others_is_found(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact before ambiguous."""
    names = iter(["a", *(f"a{number}" for number in range(9))])
    monkeypatch.setattr("turnwise.engine.chat_ids.new_chat_id", lambda: next(names))

    async def find() -> str:
        async with Engine(store_of(terminal), model="demo", settings=Settings(run_worker=False)) as engine:
            for _ in range(10):
                await engine.create_chat()
            return await chosen_id(engine, "a")

    assert anyio.run(find) == "a"


@pytest.mark.parametrize(
    ("columns", "headers", "wrapped"),
    [
        (40, ["#", "trigger", "state"], ["trigger"]),
        (100, ["#", "time (UTC)", "trigger", "state", "step", "by"], ["by"]),
    ],
)
def test_a_narrow_timeline_leaves_out_when_and_by_whom_and_breaks_no_state(
    monkeypatch: pytest.MonkeyPatch, columns: int, headers: list[str], wrapped: list[str]
) -> None:
    monkeypatch.setattr(style.console, "width", columns)
    table = timeline([])
    assert [column.header for column in table.columns] == headers
    assert [column.header for column in table.columns if not column.no_wrap] == wrapped
