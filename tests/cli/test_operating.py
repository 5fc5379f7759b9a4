"""A stuck chat, and what an operator types at it: each command does it, says so, and is on record under a name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.cli.terminal_chats import chat_of, last_record, stuck

from support.terminal import Terminal
from turnwise import ModelError
from turnwise.providers.scripted import Call, Reply


def test_send_is_idempotent_by_client_id(terminal: Terminal) -> None:
    chat_id = stuck(terminal, "hello")
    said = ("send", chat_id, "and now?", "--client-id", "one")
    receipts = [json.loads(terminal.run(*said, "--json").out) for _ in range(2)]
    assert [receipt["replayed"] for receipt in receipts] == [False, True]
    assert receipts[0]["message_id"] == receipts[1]["message_id"]
    assert f"message {receipts[0]['message_id']} was accepted before" in terminal.run(*said).words
    assert "was accepted before" in terminal.run(*said).words
    told = terminal.run("send", chat_id, "more")
    assert "waits in the queue" in told.words
    assert "pending" in told.words
    assert terminal.run("send", chat_id, "more", "--when-busy", "reject").code == 1


def test_resume_and_interrupt(terminal: Terminal) -> None:
    chat_id = stuck(terminal, Reply(error=ModelError("quota")))
    resumed = terminal.run("resume", chat_id)
    assert (resumed.code, chat_of(terminal, chat_id)["state"]) == (0, "pending")
    assert "pending · version 6" in resumed.out
    assert "{" not in resumed.out
    assert "{" not in terminal.run("interrupt", stuck(terminal, "hello", run_worker=False)).out
    stopped = json.loads(terminal.run("interrupt", chat_id, "--reason", "too dear", "--json").out)
    assert (stopped["state"], stopped["settled"]) == ("interrupted", True)
    records = json.loads(terminal.run("audit", chat_id, "--json").out)
    assert [record["reason"] for record in records if record["trigger"] == "interrupt"] == ["too dear"]
    terminal.run("resume", chat_id)
    assert "interrupted · version" in terminal.run("interrupt", chat_id).out
    refused = terminal.run("resume", chat_id[:20] + "zzzzzz")
    assert (refused.code, "there is no chat" in refused.words) == (2, True)


def test_archived_chat_refuses_messages(terminal: Terminal) -> None:
    chat_id = stuck(terminal, "hello")
    assert terminal.run("archive", chat_id).code == 0
    assert terminal.run("send", chat_id, "hi").code == 1
    assert terminal.run("unarchive", chat_id).code == 0
    sent = terminal.run("send", chat_id, "hi")
    assert (sent.code, " is accepted " in sent.words) == (0, True), sent


COMMANDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "send": lambda chat_id: ("send", chat_id, "hi"),
    "interrupt": lambda chat_id: ("interrupt", chat_id),
    "resume": lambda chat_id: ("resume", chat_id),
    "archive": lambda chat_id: ("archive", chat_id),
    "unarchive": lambda chat_id: ("unarchive", chat_id),
    "erase": lambda chat_id: ("erase", chat_id, "m1", "--yes"),
    "submit": lambda chat_id: ("submit", chat_id, "yes"),
}
BEFORE: dict[str, tuple[str, ...]] = {"interrupt": ("send", "hi"), "unarchive": ("archive",)}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("named", [True, False])
def test_actor_is_recorded(terminal: Terminal, command: str, *, named: bool) -> None:
    failing = Reply(error=ModelError("quota")) if command == "resume" else "hello"
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]) if command == "submit" else failing)
    if command in BEFORE:
        name, *rest = BEFORE[command]
        terminal.run(name, chat_id, *rest)
    done = terminal.run(*COMMANDS[command](chat_id), *(("--actor", "jane") if named else ()), "--json")
    assert done.code == 0, done.err
    assert isinstance(json.loads(done.out), dict)
    assert last_record(terminal, chat_id)["actor"] == ("jane" if named else "operator")
