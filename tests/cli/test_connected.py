"""`--server`: commands act on a service as on a store, as the token's principal."""

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
from turnwise import Agent, Engine
from turnwise.providers.scripted import Call, Reply, ScriptedModel

READING = (
    "show CHAT --json",
    "show CHAT --view model",
    "audit CHAT",
    "replay CHAT --json",
    "verify CHAT --family --json",
    "explain CHAT --json",
    "export CHAT",
    "diagram CHAT",
    "diagram CHAT --show path",
    "diagram CHAT --show timeline",
    "list --limit 3",
)


def answer(request: Any) -> Reply:
    last = request.messages[-1]
    if last.role == "user" and last.text == "ask me":
        return Reply(calls=[Call("ask_user", {"question": "Which one?"})])
    if last.role == "user" and last.text == "hang":
        return Reply("never", first_delay=600)
    return Reply(f"You said: {last.text}" if last.role == "user" else "Thanks.")


MODEL = ScriptedModel(answer)
AGENTS = [Agent("default", MODEL), Agent("other", MODEL)]


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
    """Set the service's store and an operator's token."""
    monkeypatch.setenv("TURNWISE_TOKEN", "operator-token")
    return Terminal(folder, store="sqlite:///chats.db")


def created(url: str, *messages: str, who: str = "ada") -> str:
    """Create a chat of an owner; return its id once every message is answered."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {who}-token"}, timeout=30) as client:
        tool = {"name": "ask_user", "description": "Ask.", "input_schema": {"type": "object"}}
        chat = str(client.post("/chats", json={"client_tools": [tool], "title": "A parcel"}).json()["id"])
        for one in messages:
            client.post(f"/chats/{chat}/messages", json={"content": one}).raise_for_status()
            client.get(f"/chats/{chat}/events", params={"until_rest": True})
    return chat


def test_server_output_equals_store_output(here: Terminal, url: str) -> None:
    chat = created(url, "Hello")
    for line in READING:
        typed = line.replace("CHAT", chat).split()
        from_store, from_service = here.run(*typed), here.run(*typed, "--server", url)
        assert (from_service.code, from_service.err) == (0, ""), line
        assert from_service.out == from_store.out, line
        assert len(from_service.out) > 20, line


def test_whole_chat_through_a_server(here: Terminal, url: str, folder: Path) -> None:
    """Every command that changes a chat; the log names the token's operator."""

    def did(*typed: str) -> Any:
        done = here.run(*typed, "--server", url)
        assert done.code == 0, done.err
        return done

    chat = created(url, "Hello", "ask me")
    assert "the answer is given" in did("submit", chat, "this one").words
    messages = json.loads(did("show", chat, "--json").out)["messages"]
    (result,) = [part for message in messages for part in message["parts"] if part["type"] == "tool_result"]
    (folder / "answers.json").write_text(json.dumps([{"call_id": result["call_id"], "output": result["output"]}]))
    assert json.loads(did("submit", chat, "--json", "--results", "answers.json").out)["replayed"]
    assert "is accepted" in did("send", chat, "hang").words
    assert "interrupted" in did("interrupt", chat, "--reason", "enough").words
    rest(url, chat)
    did("resume", chat, "--actor", "jane")
    did("interrupt", chat)
    rest(url, chat)
    assert messages[0]["id"] in did("erase", chat, messages[0]["id"], "--yes").words
    assert did("archive", chat).code == did("unarchive", chat).code == 0
    records = json.loads(did("audit", chat, "--json").out)
    assert f"deleted {chat}" in did("delete", chat, "--yes").words
    (folder / "elsewhere.jsonl").write_text(anyio.run(exported, f"sqlite:///{folder}/elsewhere.db"))
    assert "is imported" in did("import", "elsewhere.jsonl").words
    assert "sound" in did("verify", "last").words
    assert {"user:ada", "operator:ops", "operator:ops on behalf of jane"} <= {record["actor"] for record in records}
    assert "operator" not in {record["actor"] for record in records}


async def exported(store: str) -> str:
    async with Engine(store, model="demo") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Hello")
        return "".join([line async for line in engine.export_chat(chat.id)])


def rest(url: str, chat: str) -> None:
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer ada-token"}, timeout=30) as client:
        client.get(f"/chats/{chat}/events", params={"until_rest": True})


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
    "list --server chats.db": "--server: must be like https://chats.example.com; it was 'chats.db'",
    "list --server http://": "--server: must be like https://chats.example.com",
    "list --server http://ann:hunter2@a": (
        "--server: must hold no user and no password, as the token says who asks; it was 'http://ann:***@a'"
    ),
    "inspect --server http://ann:hunter2@a/v1": "it was 'http://ann:***@a/v1'",
    "inspect --server http://a/v1?x=1#y": "--server: must be like https://chats.example.com",
    "list --server ftp://ann:hunter2@a": "it was 'ftp://ann:***@a'",
    "list --server http://a --store sqlite:///a.db": "leave one of them out",
    "delete last --yes --file-folder x": "--file-folder: belongs to a store",
    "export last --key key.txt": "--key: a service takes no keys",
    "import x.jsonl --key key.txt": "--key: a service takes no keys",
    "delete last --store sqlite:///a.db": "--store, --server: each names the place where the",
    "chat shop:agents": "MODULE:ATTRIBUTE: is for chats that run here",
    "chat --model demo": "--model: is for chats that run here",
    "chat --chat last --agent default": "--agent: is for a new chat",
}


def test_store_only_options_are_refused_for_servers(here: Terminal, url: str, folder: Path) -> None:
    (folder / "key.txt").write_text("k" * 64)
    created(url)
    for line, problem in REFUSED.items():
        refused = here.run(*line.split(), *(() if "--server" in line else ("--server", url)))
        assert (refused.code, problem in refused.words) == (2, True), refused


def test_unreachable_server_and_bad_token_are_explained(
    here: Terminal, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(server: str) -> Finished:
        return here.run("list", "--server", server)

    monkeypatch.setenv("TURNWISE_TOKEN", "wrong-token")
    assert "needs a token that the service knows" in listed(url).words
    monkeypatch.setenv("TURNWISE_TOKEN", "two words")
    assert "TURNWISE_TOKEN: must be text of one word" in listed(url).words
    monkeypatch.delenv("TURNWISE_TOKEN")
    assert "needs a token of the service in the variable TURNWISE_TOKEN" in listed(url).words
    assert replace(here, store="http://elsewhere.invalid").run("list").code == 2
