"""A stuck chat, and what an operator types at it: each command does it, says so, and is on record under a name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from support.terminal import Terminal
from turnwise import ClientTool, Engine, ModelError, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

ASK = ClientTool("ask", "Ask.", {"type": "object"})


@tool(policy="ask")
async def pay() -> str:
    """Pay."""
    return "paid"


def begun(terminal: Terminal, *replies: Any, run_worker: bool = True) -> str:
    """Begin a chat in the terminal's store, let it come to rest if a worker runs, and return its id."""

    async def begin() -> str:
        settings = Settings(run_worker=run_worker)
        url = f"sqlite:///{terminal.folder}/turnwise.db"
        async with Engine(url, model=ScriptedModel(list(replies)), tools=[pay], settings=settings) as engine:
            chat = await engine.create_chat(client_tools=[ASK], title="the-title")
            if run_worker:
                await engine.ask(chat.id, "the-question")
            else:
                await engine.send_message(chat.id, "the-question")
            return chat.id

    return anyio.run(begin)


def chat_of(terminal: Terminal, chat_id: str) -> Any:
    return json.loads(terminal.run("show", chat_id, "--json").out)["chat"]


def last_record(terminal: Terminal, chat_id: str) -> Any:
    return json.loads(terminal.run("audit", chat_id, "--json").out)[-1]


def test_a_message_is_sent_once_under_its_client_id(terminal: Terminal) -> None:
    chat_id = begun(terminal, "hello")
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


def test_a_chat_in_error_is_resumed_and_one_that_works_is_stopped(terminal: Terminal) -> None:
    chat_id = begun(terminal, Reply(error=ModelError("quota")))
    resumed = terminal.run("resume", chat_id)
    assert (resumed.code, chat_of(terminal, chat_id)["state"]) == (0, "pending")
    assert "pending · version 6" in resumed.out
    assert "{" not in resumed.out
    assert "{" not in terminal.run("interrupt", begun(terminal, "hello", run_worker=False)).out
    stopped = json.loads(terminal.run("interrupt", chat_id, "--reason", "too dear", "--json").out)
    assert (stopped["state"], stopped["settled"]) == ("interrupted", True)
    records = json.loads(terminal.run("audit", chat_id, "--json").out)
    assert [record["reason"] for record in records if record["trigger"] == "interrupt"] == ["too dear"]
    terminal.run("resume", chat_id)
    assert "interrupted · version" in terminal.run("interrupt", chat_id).out
    refused = terminal.run("resume", chat_id[:20] + "zzzzzz")
    assert (refused.code, "there is no chat" in refused.words) == (2, True)


def test_an_archived_chat_takes_nothing_until_it_is_opened_again(terminal: Terminal) -> None:
    chat_id = begun(terminal, "hello")
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
def test_whoever_acts_is_on_record(terminal: Terminal, command: str, *, named: bool) -> None:
    failing = Reply(error=ModelError("quota")) if command == "resume" else "hello"
    chat_id = begun(terminal, Reply(calls=[Call("ask", {}, id="c1")]) if command == "submit" else failing)
    if command in BEFORE:
        name, *rest = BEFORE[command]
        terminal.run(name, chat_id, *rest)
    done = terminal.run(*COMMANDS[command](chat_id), *(("--actor", "jane") if named else ()), "--json")
    assert done.code == 0, done.err
    assert isinstance(json.loads(done.out), dict)
    assert last_record(terminal, chat_id)["actor"] == ("jane" if named else "operator")


# Answers


def test_the_one_open_call_need_not_be_named(terminal: Terminal) -> None:
    chat_id = begun(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    told = terminal.run("submit", chat_id, "a = b")
    assert told.code == 0, told.err
    assert "receipt" in told.words
    assert "a = b" in terminal.run("show", chat_id).out
    again = json.loads(terminal.run("submit", chat_id, "c1=a = b", "--json").out)
    assert again["replayed"]


def test_several_calls_are_answered_by_name_with_json_or_text(terminal: Terminal) -> None:
    calls = [Call("ask", {}, id="c1"), Call("ask", {}, id="c2"), Call("pay", {}, id="c3")]
    chat_id = begun(terminal, Reply(calls=calls))
    short = terminal.run("submit", chat_id, "c1=yes")
    assert short.code == 1
    assert "c2" in short.words
    unnamed = terminal.run("submit", chat_id, "yes")
    assert unnamed.code == 2
    assert "c1, c2, c3" in unnamed.words
    assert terminal.run("submit", chat_id, 'c1={"a": 1}', "c2=plain text", "c3=true").code == 0
    shown = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    answers = [part["output"] for message in shown for part in message["parts"] if part["type"] == "tool_result"]
    assert answers == [{"a": 1}, "plain text"]


def test_answers_come_from_a_file_or_from_standard_input(terminal: Terminal) -> None:
    chat_id = begun(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    results = '[{"call_id": "c1", "output": "no", "is_error": true}]'
    (terminal.folder / "results.json").write_text(results)
    assert terminal.run("submit", chat_id, "--results", "results.json", "--actor", "jane").code == 0
    assert json.loads(terminal.run("submit", chat_id, "--results", "-", "--json", typed=results).out)["replayed"]
    assert last_record(terminal, chat_id)["actor"] == "jane"
    for wrong, words in (("{}", "must hold JSON"), ("[", "must hold JSON"), ("", "must hold JSON")):
        (terminal.folder / "wrong.json").write_text(wrong)
        refused = terminal.run("submit", chat_id, "--results", "wrong.json")
        assert (refused.code, words in refused.words) == (2, True)
    assert terminal.run("submit", chat_id).code == 2
    assert terminal.run("submit", chat_id, "--results", "missing.json").code == 2


@pytest.mark.parametrize(
    ("options", "own", "stored"),
    [([], "", [False]), (["--error"], "", [True]), (["--error"], ', "is_error": false', [False])],
    ids=["plain", "failed", "says it itself"],
)
def test_answers_of_a_file_say_that_the_calls_failed_if_the_option_says_so(
    terminal: Terminal, options: list[str], own: str, stored: list[bool]
) -> None:
    chat_id = begun(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    results = f'[{{"call_id": "c1", "output": "the device is broken"{own}}}]'
    assert terminal.run("submit", chat_id, "--results", "-", *options, typed=results).code == 0
    shown = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    answers = [part["is_error"] for message in shown for part in message["parts"] if part["type"] == "tool_result"]
    assert answers == stored


def test_a_call_of_a_local_tool_is_not_for_the_client_to_answer(terminal: Terminal) -> None:
    """A worker has let the chat go while its tool ran."""

    async def leave() -> str:
        running = anyio.Event()

        @tool(crash="at_least_once")
        async def wait() -> str:
            """Wait."""
            running.set()
            await anyio.sleep_forever()
            raise AssertionError

        url, model = (
            f"sqlite:///{terminal.folder}/turnwise.db",
            ScriptedModel([Reply(calls=[Call("wait", {}, id="c1")])]),
        )
        async with Engine(url, model=model, tools=[wait], settings=Settings(shutdown_grace=0)) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "the-question")
            await running.wait()
            return chat.id

    chat_id = anyio.run(leave)
    assert [call["call_id"] for call in chat_of(terminal, chat_id)["open_calls"]] == ["c1"]
    refused = terminal.run("submit", chat_id, "yes")
    assert (refused.code, "'yes' names no call; open are: none" in refused.words) == (2, True)


# Signed logs


def test_a_log_is_signed_with_a_key_that_no_screen_shows(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    chat_id = begun(terminal, "hello")
    (terminal.folder / "key").write_text("a very secret key\n")
    (terminal.folder / "other").write_text("another secret key\n")
    signed = terminal.run("audit", chat_id, "--export", "log.jsonl", "--key", "key")
    assert (signed.code, "signed" in signed.out) == (0, True)
    checked = [terminal.run("verify", "log.jsonl", "--key", key) for key in ("key", "other", "missing")]
    assert [run.code for run in checked] == [0, 1, 2]
    monkeypatch.setenv("TURNWISE_AUDIT_KEY", "a very secret key")
    assert terminal.run("verify", "log.jsonl").code == 0
    assert terminal.run("audit", chat_id, "--export", "again.jsonl").code == 0
    assert (terminal.folder / "again.jsonl").read_bytes() == (terminal.folder / "log.jsonl").read_bytes()
    monkeypatch.setenv("TURNWISE_AUDIT_KEY", "")
    refused = terminal.run("verify", "log.jsonl")
    assert refused.code == 2
    assert "secret" not in "".join(run.out + run.err for run in (signed, refused, *checked)).replace("'secret", "")


@pytest.mark.parametrize("key", [(), ("--key", "key"), ("--signing-key", "pair")], ids=["none", "secret", "pair"])
def test_a_log_is_told_as_signed_if_it_is(terminal: Terminal, key: tuple[str, ...]) -> None:
    chat_id = begun(terminal, "hello")
    (terminal.folder / "key").write_text("a very secret key\n")
    assert terminal.run("keygen", "pair").code == 0
    count = len(json.loads(terminal.run("audit", chat_id, "--json").out))
    written = terminal.run("audit", chat_id, "--export", "log.jsonl", *key)
    assert written.words == f"wrote {count} records to log.jsonl" + (", signed" if key else "")
    told = ("--public-key", "pair.pub") if key[:1] == ("--signing-key",) else key
    assert terminal.run("verify", "log.jsonl", *told).code == 0
    assert terminal.run("audit", chat_id).out.lstrip().startswith("#")
