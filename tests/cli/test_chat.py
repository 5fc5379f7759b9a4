"""`turnwise chat`, talked to through a pipe and at a terminal."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import DummyInput, PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.output.vt100 import Vt100_Output

from support.terminal import Keyboard, Terminal
from turnwise import Engine, tool
from turnwise.cli import chat
from turnwise.cli.screen import typed
from turnwise.cli.terminal import TerminalTalk
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.events import StatusEvent
from turnwise.states.names import ChatState, Executor

CTRL_C = "\x03"


def test_chat_reads_messages_from_a_pipe(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="hello\n\n/state\n/quit\nnever read\n")
    assert told.code == 0, told.err
    assert "Hello! I am the demo model" in told.out
    assert "waiting → pending → streaming → waiting" in told.out
    assert "the chat waits for the next message" in told.out
    assert "never read" not in told.out
    assert "The chat is kept" in told.out


def test_demo_tools_read_only_the_folder(terminal: Terminal) -> None:
    (terminal.folder / "plan.md").write_text("Sail at dawn.")
    told = terminal.run("chat", typed="read_file plan.md\nread_file ../secret.md\n").out
    assert "✓ read_file → Sail at dawn." in told
    assert "✗ read_file → PermissionError: '../secret.md' lies outside" in told


def test_question_of_the_model_is_printed(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="Ask the user “Which way?”\nTo the left.\n").out
    assert "? ask_user(question='Which way?')" in told
    assert "ask_user says: “To the left.”" in told


@pytest.mark.parametrize(("answer", "outcome"), [("y", "✓ read_file → Sail"), ("n", "✗ read_file →")])
def test_approval_is_asked_and_its_answer_counts(terminal: Terminal, answer: str, outcome: str) -> None:
    """A chat of a service may be gone on with in the terminal, open questions and all."""
    (terminal.folder / "plan.md").write_text("Sail at dawn.")
    anyio.run(_leave_a_call_open, f"sqlite:///{terminal.folder}/turnwise.db")
    told = terminal.run("chat", "--chat", "last", typed=f"{answer}\n").out
    assert "allow read_file? (y/n)" in told
    assert outcome in told


async def _leave_a_call_open(store: str, path: str = "plan.md") -> None:
    @tool(policy="ask")
    def read_file(path: str) -> str:
        """Read a file."""
        raise AssertionError(path)

    async with Engine(store, model="demo", tools=[read_file]) as engine:
        rested = await engine.ask((await engine.create_chat()).id, f"read_file {path}")
        assert rested.chat.state is ChatState.requires_action


def test_slash_commands_compact_clear_and_refuse(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="hello\n/clear\n/compact\nhello\n/compact\n/clear\n/resume\n/dance\n/help\n")
    assert told.code == 2
    assert "no message to compact" in told.err
    assert "messages are folded into a summary" in told.out
    assert "The model starts anew" in told.out
    assert "turnwise: resume is not possible in state waiting" in told.err
    assert "turnwise: /dance: there is no such command" in told.err
    assert "go on after a stop" in told.out


@pytest.mark.parametrize("option", ["--system", "--agent"])
def test_new_chat_options_are_refused_for_old_chats(terminal: Terminal, option: str) -> None:
    """Or the answer would be taken for that of the agent, or under the prompt, that was named."""
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
    """The same key ends a turn and, at the prompt, the conversation: never the chat."""
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
    said = json.loads(terminal.run("show", "last", "--json").out)["messages"]
    expected = ["Why is the sky as blue as it is?", "hello you, typed ahead"]
    assert [message["parts"][0]["text"] for message in said if message["role"] == "user"] == expected


CREW = """
from turnwise import Agent
from turnwise.providers.scripted import ScriptedModel

agents = [Agent(name, ScriptedModel(lambda request, name=name: f"{name} has heard it")) for name in ("one", "two")]
"""


def test_chat_talks_to_named_agents(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    (terminal.folder / "crew.py").write_text(CREW)
    monkeypatch.delitem(sys.modules, "crew", raising=False)
    told = terminal.run("chat", "crew:agents", "--agent", "two", typed="hello\n")
    assert (told.code, "two has heard it" in told.out) == (0, True), told
    again = terminal.run("chat", "crew:agents", "--chat", "last", typed="and now?\n").out
    assert again.count("two has heard it") == 2
    nobody = terminal.run("chat", "crew:agents", typed="hello\n")
    assert (nobody.code, "must be one of 'one', 'two': this engine has several" in nobody.err) == (2, True), nobody
    wrong = terminal.run("chat", "crew:agents", "--model", "demo", typed="hello\n")
    assert (wrong.code, "your agents have models of their own" in wrong.words) == (2, True)


# A talk in this process


def test_piped_line_is_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever pipes a file in has seldom written it, and the model gets it as it is."""
    line = "hello \x1b]52;c;cHduZWQ=\x1b\\ there\u202e"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n"))
    assert typed("") == line
    assert capsys.readouterr().out == "hello \\x1b]52;c;cHduZWQ=\\x1b\\ there\\u202e\n"


class Engaged:
    """Stand for the conversation behind a terminal, and record its calls."""

    def __init__(self, asked: list[ToolCall]) -> None:
        self.chat_id: str | None = "c"
        self.done: list[Any] = []
        self.portal = self
        self.view = self
        self.scroll = self
        self.tail = "so far"
        self.after = 3
        self.chats = self
        self._asked = asked

    def do(self, line: str) -> None:
        self.done.append(line)

    def submit(self, results: list[ToolResult]) -> bool:
        self.done.append([*results])
        return True

    def explain_wait(self) -> None: ...

    def stop(self) -> None:
        self.done.append("stop")

    def show(self, event: StatusEvent) -> None:
        self.done.append(event.seq)

    def exit(self, *, exception: type[BaseException]) -> None:
        self.done.append(exception)

    def start_task_soon(self, *task: Any) -> Future[None]:
        self.done.append(task[1:])
        return Future()

    async def get_chat(self, chat_id: str) -> Any:
        self.state = ChatState.requires_action if self._asked else ChatState.waiting
        self.open_calls = self._asked
        return self


def call(number: int, name: str, approval: Any = None) -> ToolCall:
    return ToolCall(
        call_id=f"c{number}",
        name=name,
        arguments={},
        executor=Executor.client,
        index=number,
        step=1,
        **({"approval": approval} if approval else {}),
    )


def test_terminal_asks_in_order_and_interrupts() -> None:
    talk = Engaged([call(1, "pay\x1b", "asked"), call(2, "say\x1b")])
    event: Any = type("Press", (), {"app": talk})
    with create_app_session(input=DummyInput(), output=DummyOutput()):
        terminal = TerminalTalk(talk)  # type: ignore[arg-type]
        assert terminal._message() == "» "
        terminal._stop(event)
        anyio.run(terminal._read_state, "c")
        assert terminal._message() == r"  allow pay\x1b? (y/n) "
        terminal._stop(event)
        terminal._take("/state")
        terminal._take("Y")
        assert terminal._message() == r"  say\x1b: "
        assert [*talk.done] == [EOFError, "stop", "/state", ("c",)]
        terminal._take("to the left")
        assert talk.done[4:] == [[ToolResult("c1", True), ToolResult("c2", "to the left")]]  # noqa: FBT003
        assert terminal._message() == "» "
        terminal._take("next")
        assert talk.done[5:] == ["next"]  # it follows already
        terminal._state = ChatState.streaming
        terminal._stop(event)
        talk.chat_id = None
        terminal._stop(event)
        assert talk.done[6:] == ["stop", EOFError]


class Visited(Engaged):
    """Types for the person: each time a line was done it presses the next keys."""

    def __init__(self, keys: PipeInput, *presses: str) -> None:
        super().__init__([])
        self.keys = keys
        self.presses = iter(presses)
        self.following: Future[None] = Future()

    def do(self, line: str) -> None:
        super().do(line)
        print("\x1b[31mdone\x1b[0m")  # noqa: T201 - output of a command while a line is typed
        self.press()

    def stop(self) -> None:
        super().stop()
        self.press()

    def press(self) -> None:
        self.keys.send_text(next(self.presses))

    def start_task_soon(self, *task: Any) -> Future[None]:
        super().start_task_soon(*task)
        return self.following


@contextlib.contextmanager
def at_a_terminal(*presses: str) -> Iterator[tuple[Visited, io.StringIO]]:
    with create_pipe_input() as keys:
        screen = io.StringIO()
        output = Vt100_Output(screen, lambda: Size(rows=30, columns=100))
        with create_app_session(input=keys, output=output):
            yield Visited(keys, *presses), screen


def test_terminal_session_until_exit() -> None:
    with at_a_terminal("again\r", "/quit\rnever read\r") as (talk, screen):
        talk.keys.send_text("  hello  \r")
        TerminalTalk(talk).run()  # type: ignore[arg-type]
    assert talk.done == [("c",), "hello", "again"]
    assert talk.following.cancelled()
    assert "\x1b[31mdone\x1b[0m" in screen.getvalue()


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_ctrl_c_and_ctrl_d_leave_at_rest(key: str) -> None:
    with at_a_terminal() as (talk, _):
        talk.chat_id = None
        talk.keys.send_text(key)
        TerminalTalk(talk).run()  # type: ignore[arg-type]
    assert talk.done == []
    assert not talk.following.cancelled()


def test_ctrl_c_keeps_typed_text() -> None:
    with at_a_terminal(" done\r", "/quit\r") as (talk, _):
        terminal = TerminalTalk(talk)  # type: ignore[arg-type]
        terminal._state = ChatState.streaming
        talk.keys.send_text("half\x03")
        terminal.run()
    assert talk.done == [("c",), "stop", "half done"]
