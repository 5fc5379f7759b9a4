"""`turnwise submit`: which calls are answered, with what, and what is told of it."""

from __future__ import annotations

import json

import anyio
import pytest
from tests.cli.terminal_chats import begun, chat_of, last_record, stuck

from support.terminal import Terminal
from turnwise import Engine, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


def test_submit_prints_the_receipt(terminal: Terminal) -> None:
    chat_id = begun(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    wrong = terminal.run("submit", chat_id, "yes", "--results", "x")
    assert (wrong.code, "or --results FILE" in wrong.words) == (2, True)
    failed = terminal.run("submit", chat_id, "c1=no", "--error")
    assert "the answer is given: receipt" in failed.out
    assert "✗ ask → no" in terminal.run("show", chat_id).out
    again = terminal.run("submit", chat_id, "c1=no", "--error")
    assert "the answer was given before: receipt" in again.out
    nameless = terminal.run("submit", chat_id, "no")
    assert (nameless.code, "'no' names no call; open are: none;" in nameless.words) == (2, True)
    for content, words in (
        ("{}", "valid array"),
        ("[", "EOF"),
        ('["\udc80"]', "unicode"),
    ):
        given = terminal.run("submit", chat_id, "--results", "-", typed=content)
        assert (given.code, words in given.words) == (2, True), given


def test_single_open_call_needs_no_id(terminal: Terminal) -> None:
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    told = terminal.run("submit", chat_id, "a = b")
    assert told.code == 0, told.err
    assert "receipt" in told.words
    assert "a = b" in terminal.run("show", chat_id).out
    again = json.loads(terminal.run("submit", chat_id, "c1=a = b", "--json").out)
    assert again["replayed"]


def test_calls_are_answered_by_id(terminal: Terminal) -> None:
    calls = [Call("ask", {}, id="c1"), Call("ask", {}, id="c2"), Call("pay", {}, id="c3")]
    chat_id = stuck(terminal, Reply(calls=calls))
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
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
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
def test_submit_error_option_marks_failures(
    terminal: Terminal, options: list[str], own: str, stored: list[bool]
) -> None:
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    results = f'[{{"call_id": "c1", "output": "the device is broken"{own}}}]'
    assert terminal.run("submit", chat_id, "--results", "-", *options, typed=results).code == 0
    shown = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    answers = [part["is_error"] for message in shown for part in message["parts"] if part["type"] == "tool_result"]
    assert answers == stored


def test_submit_refuses_local_calls(terminal: Terminal) -> None:
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
