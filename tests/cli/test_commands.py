"""Every command, on the chat that the demo left: what it says to people, to programs, and to shells."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from support.terminal import Finished, Keyboard, Terminal
from turnwise import Agent, Engine, delegate, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


@pytest.fixture
def chat_id(played: Finished, demo: Terminal) -> str:
    assert played.code == 0
    return str(json.loads(demo.run("list", "--json").out)[0]["id"])


def test_list_prints_chats_with_their_states(demo: Terminal, chat_id: str) -> None:
    told = demo.run("list").out
    assert chat_id in told
    assert "waiting" in told
    assert json.loads(demo.run("list", "--state", "error", "--json").out) == []


@pytest.mark.parametrize("typed", ["last", "prefix", "whole"])
def test_chat_argument_takes_last_prefix_and_id(demo: Terminal, chat_id: str, typed: str) -> None:
    name = {"last": "last", "prefix": chat_id[:6], "whole": chat_id}[typed]
    assert json.loads(demo.run("show", name, "--json").out)["chat"]["id"] == chat_id


def test_show_prints_transcript_and_interrupt(demo: Terminal, chat_id: str) -> None:
    told = demo.run("show", chat_id).out
    assert "» Ask the user “What should a chat survive?”" in told
    assert "■ stopped here" in told
    assert "── Earlier messages were summarised" in told
    assert "turn 5" in told


def test_show_json_has_user_and_model_views(demo: Terminal, chat_id: str) -> None:
    views = {
        view: json.loads(demo.run("show", chat_id, "--view", view, "--json").out)["messages"]
        for view in ("user", "model")
    }
    assert len(views["model"]) < len(views["user"])
    assert views["model"][0]["synthetic"]


def test_audit_prints_a_line_per_transition(demo: Terminal, chat_id: str) -> None:
    records = json.loads(demo.run("audit", chat_id, "--json").out)
    assert [record["version"] for record in records] == [*range(1, len(records) + 1)]
    lines = demo.run("audit", chat_id).out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [str(record["version"]) for record in records]


def test_verify_finds_tampered_export(demo: Terminal, chat_id: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert demo.run("audit", chat_id, "--export", str(log)).code == 0
    assert demo.run("verify", str(log)).code == 0
    log.write_text(log.read_text().replace('"trigger":"interrupt"', '"trigger":"resume"'))
    refused = demo.run("verify", str(log), "--json")
    assert refused.code == 1
    verdict = json.loads(refused.out)
    assert not verdict["ok"]
    assert verdict["position"] > 1
    assert "not sound" in demo.run("verify", str(log)).out


def test_verify_accepts_stored_chat(demo: Terminal, chat_id: str) -> None:
    sound = {"ok": True, "problem": None, "position": None, "covered": None, "place": None}
    assert json.loads(demo.run("verify", chat_id, "--json").out) == sound
    assert "sound" in demo.run("verify", "last").out
    assert "every file" not in demo.run("verify", "last").out


def test_verify_family_checks_subagents(terminal: Terminal) -> None:
    async def delegated() -> tuple[str, str]:
        boss = ScriptedModel([Reply(calls=[Call("ask_other", {"task": "help"})]), "Thanks."])
        agents = [Agent("boss", boss, tools=[delegate("other")]), Agent("other", ScriptedModel(["Done."]))]
        async with Engine(f"sqlite:///{terminal.folder}/turnwise.db", agents=agents) as engine:
            chat = await engine.create_chat(agent="boss")
            await engine.ask(chat.id, "get help")
            (helper,) = await engine.helpers(chat.id)
            return chat.id, helper.id

    chat_id, helper = anyio.run(delegated)
    assert terminal.run("verify", chat_id, "--family").code == 0
    with closing(sqlite3.connect(terminal.folder / "turnwise.db")) as on, on:
        on.execute("DELETE FROM audit WHERE chat_id = ? AND version = 2", (helper,))
    assert terminal.run("verify", chat_id).code == 0
    assert terminal.run("verify", helper).code == 1
    assert terminal.run("verify", chat_id, "--family").code == 1


def test_explain_prints_why_a_chat_rests(demo: Terminal, chat_id: str) -> None:
    assert "waits for the next message" in demo.run("explain", chat_id).out
    explained = json.loads(demo.run("explain", chat_id, "--json").out)
    assert explained["state"] == "waiting"
    assert "send_message" in explained["legal_triggers"]


def test_diagram_highlights_the_chat_state(demo: Terminal, chat_id: str, tmp_path: Path) -> None:
    assert "class waiting current" in demo.run("diagram", chat_id).out
    assert "current" not in demo.run("diagram").out
    assert demo.run("diagram", "--format", "svg").out.startswith("<svg")
    drawing = tmp_path / "machine.svg"
    assert demo.run("diagram", chat_id, "--out", str(drawing)).code == 0
    assert 'class="state current"' in drawing.read_text()


def test_migrate_creates_a_store_and_reports_it(terminal: Terminal) -> None:
    assert "no chats yet" in terminal.run("migrate").out
    terminal.run("chat", typed="hello\n")
    assert "1 waiting" in terminal.run("migrate").out


def test_migrate_refuses_foreign_database(terminal: Terminal) -> None:
    with sqlite3.connect(terminal.folder / "turnwise.db") as foreign:
        foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    refused = terminal.run("migrate")
    assert refused.code == 1
    assert "another program" in refused.words


MISUSES = {
    "no such file": (["list"], "there is no file"),
    "no such scheme": (["list", "--store", "redis://x"], "no store's URL"),
    "no such chat": (["show", "cffff"], "there is no chat"),
    "no chat at all": (["show", "last"], "there is no chat"),
    "no such log": (["verify", "log.jsonl"], "there is no file"),
    "no such log in a folder": (["verify", "logs/log"], "there is no file"),
    "no such state": (["list", "--state", "sleeping"], "must be one of"),
    "no such model": (["chat", "--model", "parrot"], "model"),
    "no such command": (["host"], "No such command"),
    "no such option": (["list", "--loud"], "No such option"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_explained_and_exits_2(terminal: Terminal, misuse: str) -> None:
    arguments, words = MISUSES[misuse]
    if misuse not in {"no such file", "no such scheme"}:
        terminal.run("migrate")
    refused = terminal.run(*arguments)
    assert refused.code == 2, refused.out + refused.err
    assert words in refused.words
    assert "Traceback" not in refused.err


def test_reading_commands_create_no_store(terminal: Terminal) -> None:
    terminal.run("list")
    assert [*terminal.folder.iterdir()] == []


def test_worker_stops_gracefully(terminal: Terminal) -> None:
    (terminal.folder / "shop.py").write_text('from turnwise import Agent\n\nagents = [Agent("support", "demo")]\n')
    with Keyboard(terminal, ("worker", "shop:agents", "--create")) as keyboard:
        keyboard.see("runs support; SIGTERM or Ctrl-C stops it")
        keyboard.process.send_signal(signal.SIGTERM)
        keyboard.see("stopped")
        assert keyboard.process.wait() == 0


@pytest.mark.parametrize("command", ["migrate", "list", "chat"])
def test_no_command_prints_a_store_password(terminal: Terminal, command: str) -> None:
    told = terminal.run(command, "--store", "postgres-sql://jane:hunter2@host/db")
    assert told.code == 2
    assert "hunter2" not in told.words
    assert "jane:***@host" in told.words


def test_list_filters_by_awaited_party(terminal: Terminal) -> None:
    @tool(policy="ask")
    def locate() -> str:
        """Tell where the client is."""
        raise AssertionError

    async def ask() -> str:
        model = ScriptedModel([Reply(calls=[Call("locate", {})])])
        async with Engine(f"sqlite:///{terminal.folder}/turnwise.db", model=model, tools=[locate]) as engine:
            await engine.create_chat()
            chat = await engine.create_chat()
            await engine.ask(chat.id, "where am I?")
            return chat.id

    chat_id = anyio.run(ask)
    listed = {
        word: json.loads(terminal.run("list", "--awaiting", word, "--json").out) for word in ("client", "helpers")
    }
    assert [chat["id"] for chat in listed["client"]] == [chat_id]
    assert listed["helpers"] == []
    assert len(json.loads(terminal.run("list", "--json").out)) == 2
