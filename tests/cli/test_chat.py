"""`turnwise chat`, talked to through a pipe and at a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from support.look import lines_of, screen_of
from support.terminal import Keyboard, Terminal
from turnwise import ChatState, Engine, Settings, tool
from turnwise.cli.chat import Talk
from turnwise.cli.event_view import show_until_rest
from turnwise.cli.scroll import Scroll
from turnwise.engine.results import Chat
from turnwise.providers.scripted import Reply, ScriptedModel

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


def test_approval_shows_all_arguments(terminal: Terminal) -> None:
    """Also to whoever answers by `turnwise submit`, and looks first."""
    path = "/".join(f"folder-{number}" for number in range(30)) + "/the-end.md"
    anyio.run(_leave_a_call_open, f"sqlite:///{terminal.folder}/turnwise.db", path)
    for command in (("chat", "--chat", "last"), ("show", "last")):
        told = "".join(terminal.run(*command).out.split())
        assert f"?read_filepath='{path}'" in told, command


async def _leave_a_call_open(store: str, path: str = "plan.md") -> None:
    @tool(policy="ask")
    def read_file(path: str) -> str:
        """Read a file."""
        raise AssertionError(path)

    async with Engine(store, model="demo", tools=[read_file]) as engine:
        chat = await engine.create_chat()
        rested = await engine.ask(chat.id, f"read_file {path}")
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


def test_refused_line_of_a_pipe_decides_exit_code(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="hello\n/resume\nhello again\n")
    assert (told.code, told.err.count("turnwise: ")) == (1, 1), told
    assert "resume is not possible in state waiting" in told.err
    assert told.out.count("Hello! I am the demo model") == 2


@pytest.mark.parametrize("option", ["--system", "--agent"])
@pytest.mark.parametrize("place", [(), ("--server", "http://127.0.0.1:9")], ids=["here", "a service"])
def test_options_of_new_chats_are_refused_for_old_ones(terminal: Terminal, option: str, place: tuple[str, ...]) -> None:
    """Or the answer would be taken for that of the agent, or under the prompt, that was named."""
    refused = terminal.run("chat", *place, "--chat", "last", option, "default", typed="hi\n")
    assert (refused.code, f"{option}: is for a new chat" in refused.words) == (2, True), refused


def test_ctrl_c_stops_the_turn_and_keeps_the_chat(terminal: Terminal) -> None:
    """The same key ends a turn and, at the prompt, the conversation: never the chat."""
    with Keyboard(terminal, ("chat", "--pace", "0.3")) as keyboard:
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
        keyboard.watch("1 in the queue")
        keyboard.type("/quit is not what I")
        keyboard.watch("turn 2 ended")
        lines = keyboard.watch("» /quit is not what I")
        keyboard.type("\x15/quit\r")
        keyboard.watch("The chat is kept")
        assert keyboard.process.wait() == 0
    assert any(line == "» /quit is not what I" for line in lines), lines
    said = json.loads(terminal.run("show", "last", "--json").out)["messages"]
    assert [message["parts"][0]["text"] for message in said if message["role"] == "user"] == [
        "Why is the sky as blue as it is?",
        "hello you, typed ahead",
    ]


CREW = """
from turnwise import Agent
from turnwise.providers.scripted import ScriptedModel

agents = [Agent(name, ScriptedModel(lambda request, name=name: f"{name} has heard it")) for name in ("one", "two")]
"""


def test_chat_talks_to_agents_of_a_service(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
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


class CtrlC(Future[Chat]):
    """What comes of a task for which somebody does not wait at first."""

    def __init__(self, task: Future[Chat]) -> None:
        super().__init__()
        self._task = task
        self._pressed = False

    def result(self, timeout: float | None = None) -> Chat:
        if not self._pressed:
            self._pressed = True
            raise KeyboardInterrupt
        return self._task.result(timeout)

    def cancel(self) -> bool:
        return self._task.cancel()


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


def test_ctrl_c_in_a_pipe_waits_for_the_stop(portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of()
    opened = Engine("sqlite://", model=ScriptedModel([Reply("never", first_delay=600)]))
    with portal.wrap_async_context_manager(opened) as engine:
        talk = Talk(portal, engine, portal.call(engine.create_chat), None)
        talk.view.scroll = Scroll(screen)
        talk.do("hello")
        start = portal.start_task_soon
        monkeypatch.setattr(
            portal,
            "start_task_soon",
            lambda *task: CtrlC(start(*task)) if task[0] is show_until_rest else start(*task),
        )
        talk._follow()
        (stopped,) = [one for one in portal.call(engine.audit, talk.chat_id) if one.trigger == "interrupt"]
    assert stopped.reason == "Ctrl-C"
    assert lines_of(screen)[-1].endswith("[bold dim magenta]interrupted[/]")


def test_ctrl_c_is_the_actor_of_an_interrupt() -> None:
    opened = Engine("sqlite://", model="demo", settings=Settings(run_worker=False))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as engine:
        Talk(portal, engine, None, None).stop()
        chat = portal.call(engine.create_chat)
        talk = Talk(portal, engine, chat, None)
        talk.stop()
        portal.call(engine.send_message, chat.id, "hello")
        talk.stop()
        records = portal.call(engine.audit, chat.id)
    assert [record.reason for record in records if record.trigger == "interrupt"] == ["Ctrl-C"]
