"""`turnwise chat` through a pipe and at a terminal."""

import io
import json
import signal
import sys
from dataclasses import replace

import anyio
import pytest

from cli.terminal_chats import chat_with
from support.terminal import Keyboard, Terminal
from turnwise import Engine, tool
from turnwise.cli import chat
from turnwise.cli.screen import answer_to, question_of, typed
from turnwise.providers.scripted import Call, Reply
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.names import ChatState, Executor

CTRL_C = "\x03"


def test_chat_reads_messages_from_a_pipe(terminal: Terminal) -> None:
    reported = terminal.run("chat", typed="hello\n\n/state\n/quit\nnever read\n")
    assert reported.code == 0, reported.err
    assert "Hello! I am the demo model" in reported.out
    assert "waiting → pending → streaming → waiting" in reported.out
    assert "the chat waits for the next message" in reported.out
    assert "never read" not in reported.out
    assert "The chat is kept" in reported.out


def test_demo_tools_read_only_the_folder(terminal: Terminal) -> None:
    (terminal.folder / "plan.md").write_text("Sail at dawn.")
    reported = terminal.run("chat", typed="read_file plan.md\nread_file ../secret.md\n").out
    assert "✓ read_file → Sail at dawn." in reported
    assert "✗ read_file → PermissionError: '../secret.md' lies outside" in reported


def test_question_of_the_model_is_printed(terminal: Terminal) -> None:
    reported = terminal.run("chat", typed="Ask the user “Which way?”\nTo the left.\n").out
    assert "? ask_user(question='Which way?')" in reported
    assert "ask_user says: “To the left.”" in reported


@pytest.mark.parametrize(("answer", "outcome"), [("y", "✓ read_file → Sail"), ("n", "✗ read_file →")])
def test_approval_is_asked_and_its_answer_counts(terminal: Terminal, answer: str, outcome: str) -> None:
    """The terminal can continue a service's chat, open questions included."""
    (terminal.folder / "plan.md").write_text("Sail at dawn.")
    anyio.run(_leave_a_call_open, f"sqlite:///{terminal.folder}/turnwise.db")
    reported = terminal.run("chat", "--chat", "last", typed=f"{answer}\n").out
    assert "allow read_file? (y/n)" in reported
    assert outcome in reported


async def _leave_a_call_open(store: str, path: str = "plan.md") -> None:
    @tool(policy="ask")
    def read_file(path: str) -> str:
        """Read a file."""
        raise AssertionError(path)

    async with Engine(store, model="demo", tools=[read_file]) as engine:
        resting = await engine.ask((await engine.create_chat()).id, f"read_file {path}")
        assert resting.chat.state is ChatState.requires_action


def test_slash_commands_compact_clear_and_refuse(terminal: Terminal) -> None:
    reported = terminal.run("chat", typed="hello\n/clear\n/compact\nhello\n/compact\n/clear\n/resume\n/dance\n/help\n")
    assert reported.code == 2
    assert "no message to compact" in reported.err
    assert "messages are folded into a summary" in reported.out
    assert "The model starts anew" in reported.out
    assert "turnwise: resume is not possible in state waiting" in reported.err
    assert "turnwise: /dance: there is no such command" in reported.err
    assert "go on after a stop" in reported.out


@pytest.mark.parametrize("option", ["--system", "--agent"])
def test_new_chat_options_are_refused_for_old_chats(terminal: Terminal, option: str) -> None:
    """Otherwise the answer would seem to come from the named agent or prompt."""
    refused = terminal.run("chat", "--chat", "last", option, "default", typed="hi\n")
    assert (refused.code, f"{option}: is for a new chat" in refused.words) == (2, True), refused


def test_piped_input_is_printed_once(terminal: Terminal) -> None:
    assert terminal.run("chat", typed="marco\n").out.count("» marco") == 1
    assert terminal.run("chat", typed="\n  \n").out.count("» ") == 3
    assert len(json.loads(terminal.run("list", "--json").out)) == 1, "empty lines create no chat"


def test_system_prompt_is_stored_in_a_new_chat(terminal: Terminal) -> None:
    terminal.run("chat", "--system", "You are a lighthouse.", typed="hello\n")
    assert b"You are a lighthouse." in b"".join(file.read_bytes() for file in terminal.folder.iterdir())


def test_ctrl_c_at_a_question_stops_the_turn(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []
    lines = iter(["Ask the user “Which way?”", KeyboardInterrupt(), "/state", "/quit"])

    def typed(prompt: str) -> str:
        prompts.append(prompt)
        line = next(lines)
        if isinstance(line, KeyboardInterrupt):
            raise line
        return line

    monkeypatch.setattr(chat, "typed", typed)
    printed = terminal.run("chat").out
    assert prompts == ["» ", "  ask_user: ", "» ", "» "]
    assert "interrupted" in printed


def test_ctrl_c_stops_the_turn_and_keeps_the_chat(terminal: Terminal) -> None:
    """The same key ends a turn and, at the prompt, the session: never the chat."""
    with Keyboard(terminal, ("chat", "--pace", "0.1")) as keyboard:
        keyboard.watch("»")
        keyboard.type("Why is the sky as blue as it is?\r")
        keyboard.watch("I am the demo")
        keyboard.type(CTRL_C)
        keyboard.watch("interrupted")
        keyboard.ask("/state\r", "The user said stop")
        keyboard.type(CTRL_C)
        keyboard.watch("The chat is kept")
        assert keyboard.process.wait() == 0
    shown = json.loads(terminal.run("show", "last", "--json").out)
    assert shown["chat"]["state"] == "interrupted"
    assert shown["messages"][-1]["partial"]
    assert shown["messages"][-1]["parts"][-1]["text"].startswith("I am the demo")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_restores_the_terminal(terminal: Terminal, number: signal.Signals) -> None:
    """It would stay without echo. The turn under way is released for the next worker."""
    with Keyboard(terminal, ("chat", "--pace", "0.1")) as keyboard:
        before = keyboard.modes()
        keyboard.watch("»")
        assert keyboard.modes() != before
        keyboard.type("Why is the sky as blue as it is?\r")
        keyboard.watch("I am the demo")
        keyboard.process.send_signal(number)
        assert keyboard.process.wait() == 128 + number
        assert keyboard.modes() == before
    shown = json.loads(terminal.run("show", "last", "--json").out)
    assert shown["chat"]["state"] == "pending"


@pytest.mark.deep
def test_typing_ahead_is_answered_next(terminal: Terminal) -> None:
    with Keyboard(terminal, ("chat", "--pace", "0.1")) as keyboard:
        keyboard.watch("»")
        keyboard.type("Why is the sky as blue as it is?\r")
        keyboard.watch("I am the demo")
        keyboard.type("hello you, typed ahead")
        keyboard.watch("» hello you, typed ahead")
        keyboard.type("\r")
        keyboard.watch("waits in the queue")
        keyboard.type("/quit is not what I")
        keyboard.watch("turn 2 ended")
        lines = keyboard.watch("» /quit is not what I")
        keyboard.type("\x15/quit\r")
        keyboard.watch("The chat is kept")
        assert keyboard.process.wait() == 0
    assert any(line == "» /quit is not what I" for line in lines), lines
    messages = json.loads(terminal.run("show", "last", "--json").out)["messages"]
    expected = ["Why is the sky as blue as it is?", "hello you, typed ahead"]
    assert [message["parts"][0]["text"] for message in messages if message["role"] == "user"] == expected


CREW = """
from turnwise import Agent
from turnwise.providers.scripted import ScriptedModel

agents = [Agent(name, ScriptedModel(lambda request, name=name: f"{name} has read it")) for name in ("one", "two")]
"""


def test_chat_talks_to_named_agents(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    (terminal.folder / "crew.py").write_text(CREW)
    monkeypatch.delitem(sys.modules, "crew", raising=False)
    reported = terminal.run("chat", "crew:agents", "--agent", "two", typed="hello\n")
    assert (reported.code, "two has read it" in reported.out) == (0, True), reported
    again = terminal.run("chat", "crew:agents", "--chat", "last", typed="and now?\n").out
    assert again.count("two has read it") == 2
    missing = terminal.run("chat", "crew:agents", typed="hello\n")
    assert (missing.code, "must be one of 'one', 'two': this engine has several" in missing.err) == (2, True), missing
    wrong = terminal.run("chat", "crew:agents", "--model", "demo", typed="hello\n")
    assert (wrong.code, "your agents have models of their own" in wrong.words) == (2, True)


# A talk in this process


def test_piped_line_is_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The user may not have written the piped file; the model gets it unchanged."""
    line = "hello \x1b]52;c;cHduZWQ=\x1b\\ there\u202e"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n"))
    assert typed("") == line
    assert capsys.readouterr().out == "hello \\x1b]52;c;cHduZWQ=\\x1b\\ there\\u202e\n"


def test_prompts_and_answers_of_client_calls() -> None:
    asked = ToolCall(call_id="c", name="pay\x1b", arguments={}, executor=Executor.client, index=0, step=1)
    approval = replace(asked, approval="asked")
    assert [question_of(asked), question_of(approval)] == [r"  pay\x1b: ", r"  allow pay\x1b? (y/n) "]
    assert [answer_to(approval, line).output for line in ("Y", "yes", "no", "")] == [True, True, False, False]
    assert answer_to(asked, "y") == ToolResult("c", "y")


def test_terminal_asks_in_order_and_ctrl_c_keeps_typed_text(terminal: Terminal) -> None:
    """Ctrl-C at a question stops its turn, and leaves the typed text; Ctrl-D leaves the chat."""
    chat_with(terminal, Reply(calls=[Call("ask", {}, id="c1"), Call("ask", {}, id="c2")]))
    with Keyboard(terminal, ("chat", "--chat", "last", "--pace", "0.1")) as keyboard:
        keyboard.watch("ask:")
        keyboard.type("to the left\r")
        keyboard.type("to the right\r")
        keyboard.see("turn 1 ended")
        keyboard.type("Please call ask.\r")
        keyboard.see("ask:")
        keyboard.type("half" + CTRL_C)
        keyboard.watch("interrupted")
        keyboard.watch("» half")
        keyboard.type("\x15\x04")
        keyboard.watch("The chat is kept")
        assert keyboard.process.wait() == 0
    messages = json.loads(terminal.run("show", "last", "--json").out)["messages"]
    outputs = [part["output"] for message in messages for part in message["parts"] if part["type"] == "tool_result"]
    assert outputs[:2] == ["to the left", "to the right"]
