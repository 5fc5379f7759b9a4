"""`--server`: what a command does on a store, it does on a service, as the one whom the token names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from support.served import served_beside
from support.terminal import Finished, Terminal
from turnwise import Agent, Engine, delegate
from turnwise.providers.scripted import Call, Reply, ScriptedModel

ON_A_CHAT = [
    ("show", "--json"),
    ("show", "--view", "model"),
    ("audit",),
    ("audit", "--json"),
    ("replay",),
    ("replay", "--json"),
    ("verify",),
    ("verify", "--family", "--json"),
    ("explain", "--json"),
    ("export",),
    ("diagram",),
    ("diagram", "--show", "path"),
    ("diagram", "--show", "timeline"),
    ("diagram", "--show", "sticker"),
]


def answer(request: Any) -> Reply:
    last = request.messages[-1]
    if last.role == "user" and last.text == "ask me":
        return Reply(calls=[Call("ask_user", {"question": "Which one?"})])
    if last.role == "user" and last.text == "ask both":
        return Reply(calls=[Call("ask_user", {"question": "Which one?"}), Call("ask_other", {"task": "take a second"})])
    if last.role == "user" and last.text == "take a second":
        return Reply("Taken.", first_delay=1)
    if last.role == "user" and last.text == "hang":
        return Reply("never", first_delay=600)
    return Reply(f"You said: {last.text}" if last.role == "user" else "Thanks.")


MODEL = ScriptedModel(answer)
AGENTS = [Agent("default", MODEL), Agent("other", MODEL), Agent("boss", MODEL, tools=[delegate("other")])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    store = f"sqlite:///{folder}/chats.db"
    with served_beside(lambda: Engine(store, agents=AGENTS)) as address:
        yield address


@pytest.fixture
def here(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Type where the service's store is, with an operator's token."""
    monkeypatch.setenv("TURNWISE_TOKEN", "operator-token")
    return Terminal(folder, store="sqlite:///chats.db")


def created(url: str, *said: str, who: str = "ada") -> str:
    """Create a chat of an owner, and return its id once everything said is answered."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {who}-token"}, timeout=30) as client:
        tool = {"name": "ask_user", "description": "Ask.", "input_schema": {"type": "object"}}
        chat = str(client.post("/chats", json={"client_tools": [tool], "title": "A parcel"}).json()["id"])
        for one in said:
            client.post(f"/chats/{chat}/messages", json={"content": one}).raise_for_status()
            client.get(f"/chats/{chat}/events", params={"until_rest": True})
    return chat


@pytest.mark.parametrize("typed", ON_A_CHAT, ids=" ".join)
def test_server_output_equals_store_output(here: Terminal, url: str, typed: tuple[str, ...]) -> None:
    chat = created(url, "Hello")
    command, *options = typed
    from_store, from_service = here.run(command, chat, *options), here.run(command, chat, *options, "--server", url)
    assert (from_service.code, from_service.err) == (0, "")
    assert from_service.out == from_store.out
    assert len(from_service.out) > 20


def test_list_reads_from_a_server(here: Terminal, url: str) -> None:
    created(url)
    assert here.run("list", "--limit", "3", "--server", url) == here.run("list", "--limit", "3")


def test_whole_chat_through_a_server(here: Terminal, url: str, folder: Path) -> None:
    """Every command that changes a chat; the log names the operator of the token."""

    def did(*typed: str) -> Any:
        done = here.run(*typed, "--server", url)
        assert done.code == 0, done.err
        return done

    chat = created(url, "Hello", "ask me")
    assert "the answer is given" in did("submit", chat, "this one").words
    assert json.loads(did("submit", chat, "--json", "--results", answers(folder, here, chat)).out)["replayed"]
    stop_and_go(did, url, chat)
    message = json.loads(did("show", chat, "--json").out)["messages"][0]["id"]
    assert message in did("erase", chat, message, "--yes").words
    assert did("archive", chat).code == did("unarchive", chat).code == 0
    records = json.loads(did("audit", chat, "--json").out)
    assert f"deleted {chat}" in did("delete", chat, "--yes").words
    (folder / "elsewhere.jsonl").write_text(anyio.run(exported, f"sqlite:///{folder}/elsewhere.db"))
    assert "is imported" in did("import", "elsewhere.jsonl").words
    assert "sound" in did("verify", "last").words
    assert {"user:ada", "operator:ops"} <= {record["actor"] for record in records}
    assert "operator" not in {record["actor"] for record in records}


async def exported(store: str) -> str:
    async with Engine(store, model="demo") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Hello")
        return "".join([line async for line in engine.export_chat(chat.id)])


def stop_and_go(did: Any, url: str, chat: str) -> None:
    assert "is accepted" in did("send", chat, "hang").words
    assert "interrupted" in did("interrupt", chat, "--reason", "enough").words
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer ada-token"}, timeout=30) as client:
        client.get(f"/chats/{chat}/events", params={"until_rest": True})
        did("resume", chat)
        did("interrupt", chat)
        client.get(f"/chats/{chat}/events", params={"until_rest": True})


def answers(folder: Path, here: Terminal, chat: str) -> str:
    """Write the answer that was given into a file, and return its name."""
    messages = json.loads(here.run("show", chat, "--json").out)["messages"]
    results = [part for message in messages for part in message["parts"] if part["type"] == "tool_result"]
    (folder / "answers.json").write_text(
        json.dumps([{"call_id": result["call_id"], "output": result["output"]} for result in results])
    )
    return "answers.json"


def test_chat_command_uses_a_server(here: Terminal, url: str) -> None:
    talked = here.run("chat", "--agent", "other", "--server", url, typed="Hello\nask me\nthis one\n/state\n/quit\n")
    assert talked.code == 0, talked.err
    assert "You said: Hello" in talked.words
    assert "Which one?" in talked.words
    assert "Thanks." in talked.words
    assert "waits for the next message" in talked.words
    chat = json.loads(here.run("list", "--limit", "1", "--json", "--server", url).out)[0]
    assert (chat["agent"], chat["owner"]) == ("other", None)
    again = here.run("chat", "--chat", chat["id"], "--server", url, typed="/quit\n")
    assert "You said: Hello" in again.words


def test_owner_sees_only_own_chats(here: Terminal, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_TOKEN", "bob-token")
    his, hers = created(url, "Hi", who="bob"), created(url)
    assert json.loads(here.run("show", "last", "--json", "--server", url).out)["chat"]["id"] == his
    assert json.loads(here.run("show", his[:-1], "--json", "--server", url).out)["chat"]["id"] == his
    for typed in (hers, hers[:-1]):
        refused = here.run("show", typed, "--server", url)
        assert (refused.code, refused.words) == (
            2, f"turnwise: there is no chat {typed!r} in this store; nothing was written."
        )  # fmt: skip


REFUSED = {
    "no URL": (("list", "--server", "chats.db"), "--server: must be like https://chats.example.com; it was 'chats.db'"),
    "half a URL": (("list", "--server", "http://"), "--server: must be like https://chats.example.com"),
    "a password": (
        ("list", "--server", "http://ann:hunter2@a"),
        "--server: must hold no user and no password, as the token says who asks; it was 'http://ann:***@a'",
    ),
    "a password for a page": (("inspect", "--server", "http://ann:hunter2@a/v1"), "it was 'http://ann:***@a/v1'"),
    "a page of a page": (
        ("inspect", "--server", "http://a/v1?x=1#y"),
        "--server: must be like https://chats.example.com",
    ),
    "a password in no URL": (("list", "--server", "ftp://ann:hunter2@a"), "it was 'ftp://ann:***@a'"),
    "an actor": (("resume", "last", "--actor", "me"), "--actor: a service knows by the token who acts"),
    "a folder": (("delete", "last", "--yes", "--file-folder", "x"), "--file-folder: belongs to a store"),
    "a key": (("export", "last", "--key", "key.txt"), "--key: a service is told no keys"),
    "a store": (("delete", "last", "--store", "sqlite:///a.db"), "--store, --server: each names the place where the"),
    "agents and a store": (("chat", "--store", "sqlite:///a.db"), "--store, --server: each names the place where the"),
    "a store behind": (("list", "--server", "http://a", "--store", "sqlite:///a.db"), "leave one of them out"),
    "a key to import with": (("import", "x.jsonl", "--key", "key.txt"), "--key: a service is told no keys"),
    "agents": (("chat", "shop:agents"), "MODULE:ATTRIBUTE: is for chats that run here"),
    "a model": (("chat", "--model", "demo"), "--model: is for chats that run here"),
}


@pytest.mark.parametrize(("typed", "said"), REFUSED.values(), ids=REFUSED)
def test_store_only_options_are_refused_for_servers(
    here: Terminal, url: str, folder: Path, typed: tuple[str, ...], said: str
) -> None:
    (folder / "key.txt").write_text("k" * 64)
    created(url)
    done = here.run(*typed, *(() if "--server" in typed else ("--server", url)))
    assert done.code == 2, done.words
    assert said in done.words


def test_unreachable_server_and_bad_token_are_explained(
    here: Terminal, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(server: str) -> Finished:
        return here.run("list", "--server", server)

    monkeypatch.setenv("TURNWISE_TOKEN", "wrong-token")
    assert "the service knows nobody with this token" in said(url).words
    monkeypatch.setenv("TURNWISE_TOKEN", "two words")
    assert "TURNWISE_TOKEN: must be text of one word" in said(url).words
    monkeypatch.delenv("TURNWISE_TOKEN")
    assert "needs a token of the service in the variable TURNWISE_TOKEN" in said(url).words
    assert replace(here, store="http://elsewhere.invalid").run("list").code == 2
