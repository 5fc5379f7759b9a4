"""`turnwise doctor`: what it says of a sound store, of a broken one, and after a repair."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from turnwise import Engine, Settings
from turnwise.cli.app import app
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.errors import SettingsError


async def _two_chats(store: str) -> tuple[str, str]:
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        sound, broken = await engine.create_chat(), await engine.create_chat(title="kept")
        await engine.send_message(broken.id, "hello")
        return sound.id, broken.id


def _run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words])
    return result.exit_code, result.output


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'chats.db'}"


def test_doctor_names_exports_and_repairs_a_chat(store: str, tmp_path: Path) -> None:
    """Nothing of it is lost: what was not readable is in the export, and put aside by the repair."""
    sound, broken = anyio.run(_two_chats, store)
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on, on:
        on.execute("UPDATE messages SET body = 'no JSON' WHERE chat_id = ?", (broken,))
    code, printed = _run("--store", store)
    assert code == 1
    assert "messages.body" in printed
    assert broken in printed
    assert sound not in printed
    for chat_id, exit_code in ((sound, 0), (broken, 1)):
        for form in ([], ["--json"]):
            explained = CliRunner().invoke(app, ["explain", chat_id, "--store", store, *form])
            assert (explained.exit_code, "messages.body" in explained.output) == (exit_code, chat_id == broken)
    found = json.loads(_run("--store", store, "--json")[1])
    assert [diagnosis["chat_id"] for diagnosis in found] == [broken]
    assert json.loads(explained.output)["unreadable"] == found[0]["flaws"]
    assert [(set(flaw), flaw["column"]) for flaw in found[0]["flaws"]] == [({"column", "problem"}, "messages.body")]
    file = tmp_path / "rows.jsonl"
    assert _run("--store", store, "--export", broken, str(file))[0] == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert "no JSON" in [row["row"].get("body") for row in rows if row["table"] == "messages"]
    code, printed = _run("--store", store, "--repair", broken, "--json", "--actor", "jane")
    chat = json.loads(printed)
    assert (code, chat["state"], chat["title"]) == (0, "error", "kept")
    assert _run("--store", store, "--json") == (0, "[]\n")
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on:
        aside = on.execute("SELECT origin, row FROM quarantine").fetchall()
        reasons = on.execute("SELECT body FROM audit WHERE chat_id = ? ORDER BY version DESC", (broken,)).fetchone()
    assert ("messages", "no JSON") in [(origin, json.loads(row)["body"]) for origin, row in aside]
    assert "repaired" in reasons[0]
    assert "messages.body" in reasons[0]
    assert json.loads(reasons[0])["actor"] == "jane"


def test_doctor_takes_one_action(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, broken = anyio.run(_two_chats, store)
    monkeypatch.chdir(tmp_path)
    for words in (("--export", broken), ("rows.jsonl",), ("rows.jsonl", "--export", broken, "--repair", broken)):
        result = CliRunner().invoke(app, ["doctor", "--store", store, *words])
        assert isinstance(result.exception, SettingsError)
        assert "takes either --repair CHAT, or --export CHAT FILE, or neither" in str(result.exception)
    assert not (tmp_path / "rows.jsonl").exists()
