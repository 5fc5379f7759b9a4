"""`turnwise submit`: which calls are answered, with what, and what is told of it."""

from __future__ import annotations

import json

import anyio
import pytest

from support.terminal import Terminal
from support.terminal_chats import begun, chat_of, last_record, stuck, url_of
from turnwise import Engine, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


def test_a_submission_is_told_with_its_receipt(terminal: Terminal) -> None:
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


def test_the_one_open_call_need_not_be_named(terminal: Terminal) -> None:
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    told = terminal.run("submit", chat_id, "a = b")
    assert told.code == 0, told.err
    assert "receipt" in told.words
    assert "a = b" in terminal.run("show", chat_id).out
    again = json.loads(terminal.run("submit", chat_id, "c1=a = b", "--json").out)
    assert again["replayed"]


def test_an_answer_that_is_given_again_is_none_to_the_call_that_is_open_by_then(terminal: Terminal) -> None:
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    assert terminal.run("submit", chat_id, "c1=blue").code == 0

    async def go_on() -> None:
        model = ScriptedModel([Reply(calls=[Call("ask", {}, id="c2")])])
        async with Engine(url_of(terminal), model=model) as engine:
            await engine.wait(chat_id)

    anyio.run(go_on)
    for _ in range(2):
        assert json.loads(terminal.run("submit", chat_id, "c1=blue", "--json").out)["replayed"]
        assert [call["call_id"] for call in chat_of(terminal, chat_id)["open_calls"]] == ["c2"]
    assert terminal.run("submit", chat_id, "c3=blue").code == 0, "there never was a c3"
    assert "c3=blue" in terminal.run("show", chat_id).out


def test_the_one_open_call_may_have_failed_without_being_named(terminal: Terminal) -> None:
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    assert terminal.run("submit", chat_id, "nobody is there", "--error").code == 0
    assert "✗ ask → nobody is there" in terminal.run("show", chat_id).out


def test_several_calls_are_answered_by_name_with_json_or_text(terminal: Terminal) -> None:
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


@pytest.mark.parametrize("answer", ["NaN", "Infinity", "-Infinity", "1e", "[NaN]", "nul"])
def test_what_is_no_json_is_text(terminal: Terminal, answer: str) -> None:
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    told = terminal.run("submit", chat_id, f"c1={answer}")
    assert told.code == 0, told.err
    messages = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    assert [part["output"] for message in messages for part in message["parts"] if "output" in part] == [answer]


@pytest.mark.parametrize("answer", ["\udcff", "c1=\udcff", "\udcff=1", 'c1={"a": "\udcff"}'])
def test_an_answer_of_half_a_character_is_refused_as_what_it_is(terminal: Terminal, answer: str) -> None:
    """So Python hands over what was typed in bytes that are no UTF-8."""
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
    refused = terminal.run("submit", chat_id, answer)
    assert (refused.code, "must be well-formed text" in refused.words) == (2, True), refused


def test_a_call_is_named_by_all_of_its_id(terminal: Terminal) -> None:
    """Providers make ids, some of base64, which ends with `=`."""
    calls = [Call("ask", {}, id="YQ"), Call("ask", {}, id="YQ=="), Call("ask", {}, id="YQ==b")]
    chat_id = stuck(terminal, Reply(calls=calls))
    told = terminal.run("submit", chat_id, "YQ===2", "YQ=1", "YQ==b=x=y")
    assert told.code == 0, told.err
    messages = json.loads(terminal.run("show", chat_id, "--json").out)["messages"]
    results = [part for message in messages for part in message["parts"] if part["type"] == "tool_result"]
    assert {part["call_id"]: part["output"] for part in results} == {"YQ": 1, "YQ==": 2, "YQ==b": "x=y"}


def test_answers_come_from_a_file_or_from_standard_input(terminal: Terminal) -> None:
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
def test_answers_of_a_file_say_that_the_calls_failed_if_the_option_says_so(
    terminal: Terminal, options: list[str], own: str, stored: list[bool]
) -> None:
    chat_id = stuck(terminal, Reply(calls=[Call("ask", {}, id="c1")]))
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
