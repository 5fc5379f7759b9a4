"""Commands for a stuck chat: each works, reports it, and is logged under a name."""

import contextlib
import json
import os
import socket
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import anyio
import pytest

from cli.terminal_chats import chat_of, chat_with, last_record, url_of
from support.gated_model import GatedModel
from support.terminal import Terminal
from turnwise import Engine, ModelError, Settings
from turnwise.cli.app import main
from turnwise.providers.scripted import Call, Reply, ScriptedModel


def test_send_is_idempotent_by_client_id(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, "hello")
    typed = ("send", chat_id, "and now?", "--client-id", "one")
    receipts = [json.loads(terminal.run(*typed, "--json").out) for _ in range(2)]
    assert [receipt["replayed"] for receipt in receipts] == [False, True]
    assert receipts[0]["message_id"] == receipts[1]["message_id"]
    assert f"message {receipts[0]['message_id']} was accepted before" in terminal.run(*typed).words
    assert last_record(terminal, chat_id)["actor"] == "operator"
    queued = terminal.run("send", chat_id, "more")
    assert "waits in the queue" in queued.words
    assert "pending" in queued.words
    assert terminal.run("send", chat_id, "more", "--when-busy", "reject").code == 1


def test_resume_and_interrupt(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, Reply(error=ModelError("quota")))
    resumed = terminal.run("resume", chat_id)
    assert (resumed.code, chat_of(terminal, chat_id)["state"]) == (0, "pending")
    assert "pending · version 5" in resumed.out
    assert "{" not in resumed.out
    assert "{" not in terminal.run("interrupt", chat_with(terminal, "hello", run_worker=False)).out
    stopped = json.loads(terminal.run("interrupt", chat_id, "--reason", "too dear", "--json").out)
    assert (stopped["state"], stopped["settled"]) == ("interrupted", True)
    records = json.loads(terminal.run("audit", chat_id, "--json").out)
    assert [record["reason"] for record in records if record["trigger"] == "interrupt"] == ["too dear"]
    terminal.run("resume", chat_id)
    assert "interrupted · version" in terminal.run("interrupt", chat_id).out
    refused = terminal.run("resume", chat_id[:20] + "zzzzzz")
    assert (refused.code, "there is no chat" in refused.words) == (2, True)


def test_workers_are_listed(terminal: Terminal) -> None:
    """While a worker runs, with its chats; none once it has stopped."""

    async def look() -> str:
        gate = anyio.Event()
        async with Engine(url_of(terminal), model=GatedModel("Done.", gate)) as engine:
            chat = await engine.create_chat(message="hello")
            await engine.wait(chat.id, until=["streaming"])
            with anyio.fail_after(120):
                while not [one for one in await engine.workers() if one.seen_at]:  # noqa: ASYNC110 - no event
                    await anyio.sleep(0.01)
            run = await anyio.to_thread.run_sync(terminal.run, "workers")
            gate.set()
            assert {chat.id, f"{socket.gethostname()}:{os.getpid()}"} <= set(run.out.split())
            assert max(map(len, run.out.splitlines())) <= 80
            return str(run.words)

    words = anyio.run(look)
    assert "yes default 1 of 100" in words
    assert f":{os.getpid()} streaming default" in words
    assert terminal.run("workers").words == "No worker has reported."


def test_times_keep_their_offset(terminal: Terminal) -> None:
    """A time without an offset is in UTC; anything but ISO 8601 is refused, also a Unix time."""
    created = chat_of(terminal, chat_with(terminal, "hello"))["created_at"]
    there = datetime.fromisoformat(created).astimezone(timezone(timedelta(hours=5)))
    for before, found in ((there - timedelta(minutes=1), 0), (there + timedelta(minutes=1), 1)):
        listed = terminal.run("list", "--created-before", before.isoformat(), "--json")
        assert len(json.loads(listed.out)) == found
        assert terminal.run("usage", "--since", before.astimezone(UTC).isoformat(), "--json").code == 0
    for odd in ("1735689600", "-1", "noon", "9999-12-31T23:59:59-23:00"):
        for command in (("list", "--created-after"), ("usage", "--until")):
            refused = terminal.run(*command, odd)
            assert (refused.code, "must be" in refused.words) == (2, True), odd


def test_unknown_consumer_is_refused(terminal: Terminal) -> None:
    """A misspelt name must not look as if everything were delivered."""
    chat_with(terminal, "hello")
    for options in ((), ("--again",)):
        refused = terminal.run("undelivered", "webhook:al", *options)
        assert (refused.code, "there is no consumer 'webhook:al' in this store; it has none" in refused.words) == (
            2,
            True,
        )
    assert "Everything is delivered." in terminal.run("undelivered").words


def test_owner_is_listed_exported_and_erased(terminal: Terminal) -> None:
    """Two commands move everything of an owner to another store, and one erases it."""

    async def create() -> str:
        async with Engine(url_of(terminal), model=ScriptedModel([]), settings=Settings(run_worker=False)) as engine:
            await engine.create_chat(owner="bob")
            return (await engine.create_chat(owner="ada", title="Refund", metadata={"ticket": 7})).id

    chat_id = anyio.run(create)
    found = json.loads(
        terminal.run("list", "--metadata", "ticket=7", "--title", "refund", "--no-archived", "--json").out
    )
    assert [one["id"] for one in found] == [chat_id]
    assert json.loads(terminal.run("list", "--owner", "ada", "--created-after", "2999-01-01", "--json").out) == []
    assert "waiting 2" in terminal.run("list", "--count").words
    file = terminal.folder / "ada.jsonl"
    assert terminal.run("export", "--owner", "ada", "-o", str(file)).code == 0
    elsewhere = f"sqlite:///{terminal.folder}/elsewhere.db"
    terminal.run("migrate", "--store", elsewhere)
    assert "imported 1 chat(s) of ada" in terminal.run("import", str(file), "--store", elsewhere).words
    assert "1 were there already" in terminal.run("import", str(file), "--store", elsewhere).words
    assert terminal.run("erase", "--owner", "ada").code == 2
    assert "deleted 1 chat(s) of ada" in terminal.run("erase", "--owner", "ada", "--yes").words
    assert len(json.loads(terminal.run("list", "--json").out)) == 1
    assert terminal.run("export").code == terminal.run("erase", chat_id, "--owner", "ada", "--yes").code == 2


def test_terminal_schedules(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, "hello")
    assert terminal.run("schedule", chat_id, "wake up", "--at", "soon").code == 2
    terminal.run("schedule", chat_id, "wake up", "--every", "0 9 * * 1", "--timezone", "Asia/Tokyo", "--id", "monday")
    assert last_record(terminal, chat_id)["trigger"] == "schedule"
    assert "0 9 * * 1 Asia/Tokyo operator wake up" in terminal.run("schedules", chat_id).words
    assert "scheduled monday at" in terminal.run("explain", chat_id).words
    assert terminal.run("unschedule", chat_id, "monday").code == 0
    assert "Nothing is scheduled." in terminal.run("schedules", chat_id).words


COMMANDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "send": lambda chat_id: ("send", chat_id, "hi"),
    "interrupt": lambda chat_id: ("interrupt", chat_id),
    "resume": lambda chat_id: ("resume", chat_id),
    "archive": lambda chat_id: ("archive", chat_id),
    "unarchive": lambda chat_id: ("unarchive", chat_id),
    "mark": lambda chat_id: ("mark", chat_id),
    "erase": lambda chat_id: ("erase", chat_id, "m1", "--yes"),
    "submit": lambda chat_id: ("submit", chat_id, "yes"),
}
BEFORE: dict[str, tuple[str, ...]] = {"interrupt": ("send", "hi"), "unarchive": ("archive",)}


@pytest.mark.parametrize("command", COMMANDS)
def test_actor_is_recorded(terminal: Terminal, command: str) -> None:
    failing = Reply(error=ModelError("quota")) if command == "resume" else "hello"
    chat_id = chat_with(terminal, Reply(calls=[Call("ask", {}, id="c1")]) if command == "submit" else failing)
    if command in BEFORE:
        name, *rest = BEFORE[command]
        terminal.run(name, chat_id, *rest)
    done = terminal.run(*COMMANDS[command](chat_id), "--actor", "jane", "--json")
    assert done.code == 0, done.err
    assert isinstance(json.loads(done.out), dict)
    assert last_record(terminal, chat_id)["actor"] == "jane"


def test_submit_prints_the_receipt(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    wrong = terminal.run("submit", chat_id, "yes", "--results", "x")
    assert (wrong.code, "or --results FILE" in wrong.words) == (2, True)
    failed = terminal.run("submit", chat_id, "c1=no", "--error")
    assert "the answer is given: receipt" in failed.out
    assert "✗ ask → no" in terminal.run("show", chat_id).out
    again = terminal.run("submit", chat_id, "c1=no", "--error")
    assert "the answer was given before: receipt" in again.out
    nameless = terminal.run("submit", chat_id, "no")
    assert (nameless.code, "'no' names no call; open are: none;" in nameless.words) == (2, True)


def test_calls_are_answered_by_id(terminal: Terminal) -> None:
    calls = [Call("ask", {}, id="c1"), Call("ask", {}, id="c2"), Call("pay", {}, id="c3")]
    chat_id = chat_with(terminal, Reply(calls=calls))
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


def test_submit_reads_file_or_stdin(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    results = '[{"call_id": "c1", "output": "no", "is_error": true}]'
    (terminal.folder / "results.json").write_text(results)
    assert terminal.run("submit", chat_id, "--results", "results.json", "--actor", "jane").code == 0
    assert json.loads(terminal.run("submit", chat_id, "--results", "-", "--json", typed=results).out)["replayed"]
    assert last_record(terminal, chat_id)["actor"] == "jane"
    for wrong, words in (("{}", "valid array"), ("[", "EOF"), ("", "must hold JSON")):
        (terminal.folder / "wrong.json").write_text(wrong)
        refused = terminal.run("submit", chat_id, "--results", "wrong.json")
        assert (refused.code, words in refused.words) == (2, True)
    assert terminal.run("submit", chat_id).code == 2
    assert terminal.run("submit", chat_id, "--results", "missing.json").code == 2


def test_submit_error_option_marks_failures(terminal: Terminal) -> None:
    """A result with its own error mark keeps it."""
    chat_id = chat_with(terminal, Reply(calls=[Call("ask", {}, id="c1"), Call("ask", {}, id="c2")]))
    results = '[{"call_id": "c1", "output": "broken"}, {"call_id": "c2", "output": "fine", "is_error": false}]'
    assert terminal.run("submit", chat_id, "--results", "-", "--error", typed=results).code == 0
    shown = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    answers = [part["is_error"] for message in shown for part in message["parts"] if part["type"] == "tool_result"]
    assert answers == [True, False]


# Chats that go from one store to another


OTHER = ("--store", "sqlite:///other.db")
LARGE = 18_000_000
"""Bytes of a chat's file, more than a command may hold at once even without base64."""
ALLOWED = 15_000_000
"""Bytes that a command may hold: some copies of a line."""


def resting(terminal: Terminal) -> str:
    """Create a chat, let it rest, make another store, and return the chat's id."""

    async def live() -> str:
        async with Engine(url_of(terminal), model=ScriptedModel(["Grüße\u2028…"])) as engine:
            chat = await engine.create_chat(title="the-title")
            await engine.ask(chat.id, "the-question")
            return chat.id

    assert terminal.run("migrate", *OTHER).code == 0
    return anyio.run(live)


def test_chat_moves_as_a_file(terminal: Terminal) -> None:
    chat_id = resting(terminal)
    written = terminal.run("export", "last", "--output", "chat.jsonl")
    assert written.code == 0, written.err
    lines = (terminal.folder / "chat.jsonl").read_bytes().splitlines()
    assert f"wrote {len(lines)} lines to chat.jsonl" in written.words
    (terminal.folder / "chat.jsonl").write_bytes(b"\n".join(lines))  # as an editor leaves it, that ends no last line
    done = terminal.run("import", "chat.jsonl", *OTHER)
    assert (done.code, f"✓ chat {chat_id} is imported" in done.words) == (0, True), done.words
    assert "Grüße" in terminal.run("show", chat_id, *OTHER).words
    assert terminal.run("verify", chat_id, *OTHER).code == 0
    log = json.loads(terminal.run("audit", chat_id, "--json", *OTHER).out)
    assert (log[-1]["trigger"], log[-1]["actor"]) == ("imported", "operator")


def test_signed_export_needs_its_key(terminal: Terminal) -> None:
    resting(terminal)
    (terminal.folder / "key").write_text("secret\n")
    (terminal.folder / "wrong").write_text("another\n")
    signed = terminal.run("export", "last", "-o", "chat.jsonl", "--key", "key")
    assert "signed" in signed.words
    refused = terminal.run("import", "chat.jsonl", "--key", "wrong", *OTHER)
    assert (refused.code, "not made with this key" in refused.words) == (1, True), refused.words
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 0
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 1


def test_transfer_misuse_is_named(terminal: Terminal) -> None:
    resting(terminal)
    Path(terminal.folder / "chat.jsonl").write_text("{}")
    for typed, problem in {
        "import nowhere.jsonl": "No such file",
        "import chat.jsonl --store sqlite:///nowhere.db": "there is no file",
        "export last -o nowhere/chat.jsonl": "No such file",
        "export last -o -": "'-' is no name of a file here; /dev/stdout is what a pipe reads",
        "export nobody": "there is no chat",
    }.items():
        refused = terminal.run(*typed.split())
        assert (refused.code, problem in refused.words) == (2, True), refused.words


# Large chats


@pytest.fixture
def large(terminal: Terminal) -> Terminal:
    """Return a terminal in a folder with a store whose chat has a large file."""

    async def fill() -> None:
        settings = Settings(run_worker=False)
        async with Engine(url_of(terminal), model=ScriptedModel([]), settings=settings) as engine:
            chat = await engine.create_chat()
            pieces = [bytes([number]) * (LARGE // 12) for number in range(12)]
            await engine.send_message(chat.id, [await engine.put_file(chat.id, pieces, media_type="image/png")])

    anyio.run(fill)
    return terminal


def peak(*words: str) -> int:
    """Return a command's peak of allocated bytes while it prints to /dev/null."""
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open("w") as out, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", ["turnwise", *words])
        tracemalloc.start()
        try:
            with pytest.raises(SystemExit) as exit_:
                main()
            assert not exit_.value.code
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.deep
def test_transfer_streams_large_files(large: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    large.run("migrate", *OTHER)
    monkeypatch.chdir(large.folder)
    assert peak("export", "last", "-o", "chat.jsonl") < ALLOWED
    assert (large.folder / "chat.jsonl").stat().st_size > LARGE
    assert peak("import", "chat.jsonl", *OTHER) < ALLOWED
    assert large.run("verify", "last", "--files", *OTHER).code == 0


def test_message_steers_the_turn(terminal: Terminal) -> None:
    chat_id = chat_with(terminal, "hello")
    terminal.run("send", chat_id, "later")
    assert "steers the turn" in terminal.run("send", chat_id, "left", "--when-busy", "steer").words
    assert "1 message(s) that steer the turn enter its next request" in terminal.run("explain", chat_id).words
    reported = terminal.run("chat", "--chat", chat_id, typed="/steer right\n").out
    assert reported.index("later") < reported.index("enters the turn: left")
    assert "/steer" in terminal.run("chat", typed="/help\n").out


def test_budgets_in_a_terminal(terminal: Terminal) -> None:
    chat_with(terminal, "hello")
    listed = terminal.run("budget", "--owner", "ada", "--tokens", "1000", "--cost", "2.5", "--per", "day")
    assert (listed.code, "owner ada" in listed.words) == (0, True)
    (budget,) = json.loads(terminal.run("budgets", "--owner", "ada", "--json").out)
    assert (budget["tokens"], budget["cost"], budget["actor"]) == (1000, "2.5", "operator")
    assert terminal.run("budget", "--tokens", "1").code == 2
    assert "The budget is removed." in terminal.run("budget", "--owner", "ada").out
    assert "There is no budget." in terminal.run("budgets").out
