"""`turnwise chat`, talked to through a pipe and at a terminal."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from support.look import lines_of, screen_of
from support.terminal import Finished, Keyboard, Terminal
from turnwise import Agent, ChatState, Engine, Settings, tool
from turnwise.cli import chat as chat_
from turnwise.cli import terminal as terminal_
from turnwise.cli.chat import Talk, _paced
from turnwise.cli.event_view import show_until_rest
from turnwise.cli.scroll import Scroll
from turnwise.engine.results import Chat
from turnwise.providers.demo import DemoModel
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.events import PartEvent

CTRL_C = "\x03"


def test_a_conversation_goes_through_a_pipe(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="hello\n\n/state\n/quit\nnever read\n")
    assert told.code == 0, told.err
    assert "Hello! I am the demo model" in told.out
    assert "waiting → pending → streaming → waiting" in told.out
    assert "the chat waits for the next message" in told.out
    assert "never read" not in told.out
    assert "The chat is kept" in told.out


def test_it_reads_the_files_of_the_folder_and_no_others(terminal: Terminal) -> None:
    (terminal.folder / "plan.md").write_text("Sail at dawn.")
    told = terminal.run("chat", typed="read_file plan.md\nread_file ../secret.md\n").out
    assert "✓ read_file → Sail at dawn." in told
    assert "✗ read_file → PermissionError: '../secret.md' lies outside" in told


def test_the_models_question_is_put_to_the_person(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="Ask the user “Which way?”\nTo the left.\n").out
    assert "? ask_user(question='Which way?')" in told
    assert "ask_user says: “To the left.”" in told


def test_a_question_left_open_is_asked_again_when_the_chat_goes_on(terminal: Terminal) -> None:
    left = terminal.run("chat", typed="Ask the user “Which way?”\n")
    assert left.code == 0
    assert json.loads(terminal.run("list", "--json").out)[0]["state"] == "requires_action"
    told = terminal.run("chat", "--chat", "last", typed="To the right.\n").out
    assert "» Ask the user “Which way?”" in told
    assert told.count("? ask_user(question='Which way?')") == 1
    assert "ask_user says: “To the right.”" in told


@pytest.mark.parametrize(("answer", "outcome"), [("y", "✓ read_file → Sail"), ("n", "✗ read_file →")])
def test_a_call_that_needs_approval_is_put_to_the_person(terminal: Terminal, answer: str, outcome: str) -> None:
    """A chat of a service may be gone on with in the terminal, open questions and all."""
    (terminal.folder / "plan.md").write_text("Sail at dawn.")
    anyio.run(_leave_a_call_open, f"sqlite:///{terminal.folder}/turnwise.db")
    told = terminal.run("chat", "--chat", "last", typed=f"{answer}\n").out
    assert "allow read_file? (y/n)" in told
    assert outcome in told


def test_what_a_person_is_asked_to_allow_is_shown_whole(terminal: Terminal) -> None:
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


def test_commands_compact_clear_and_refuse_in_words(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="hello\n/clear\n/compact\nhello\n/compact\n/clear\n/resume\n/dance\n/help\n")
    assert told.code == 2
    assert "no message to compact" in told.err
    assert "messages are folded into a summary" in told.out
    assert "The model starts anew" in told.out
    assert "turnwise: resume is not possible in state waiting" in told.err
    assert "turnwise: /dance: there is no such command" in told.err
    assert "go on after a stop" in told.out


def test_a_refused_line_of_a_pipe_decides_the_code_and_the_talk_goes_on(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="hello\n/resume\nhello again\n")
    assert (told.code, told.err.count("turnwise: ")) == (1, 1), told
    assert "resume is not possible in state waiting" in told.err
    assert told.out.count("Hello! I am the demo model") == 2


def test_an_answer_that_came_too_late_is_refused_and_the_talk_goes_on(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has answered while the person thought about it; what they say next is sent all the same."""
    late = chat_.answer_to

    def answered_elsewhere(call: ToolCall, line: str) -> ToolResult:
        assert terminal.run_apart("submit", "last", "To the right.").code == 0
        return late(call, line)

    monkeypatch.setattr(chat_, "answer_to", answered_elsewhere)
    told = terminal.run("chat", typed="Ask the user “Which way?”\nTo the left.\nhello\n/quit\n")
    assert (told.code, told.err.count("turnwise: ")) == (1, 1), told
    assert "ask_user says: “To the right.”" in told.out
    assert "Hello! I am the demo model" in told.out


def test_at_a_terminal_a_refusal_is_told_and_decides_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of()
    monkeypatch.setattr(chat_, "console", screen)
    opened = Engine("sqlite://", model="demo", settings=Settings(run_worker=False))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as engine:
        talk = Talk(portal, engine, portal.call(engine.create_chat), None)
        assert not talk.submit([ToolResult("call_1", "too late")])
        talk.chat_id = "nobody"
        talk.stop()
        assert talk.code == 0
    told = " ".join(lines_of(screen))
    assert "submit_tool_results is not possible in state waiting" in told
    assert "there is no chat 'nobody'" in told


def test_whoever_says_nothing_leaves_no_chat_behind(terminal: Terminal) -> None:
    told = terminal.run("chat", typed="/state\n/resume\n/help\n/quit\n")
    assert "There is no chat yet" in told.out
    assert "The chat is kept" not in told.out
    assert json.loads(terminal.run("list", "--json").out) == []


def goes_on(told: Finished) -> list[str]:
    """Return the words of the command that goes on with the chat, as a shell would take them."""
    program, *words = shlex.split(told.out.rpartition("`")[0].rpartition("`")[2])
    assert program == "turnwise"
    return words


@pytest.mark.parametrize(
    "words",
    [(), ("--store", "sqlite:///my chats.db"), ("crew:agents", "--agent", "two", "--file-folder", "files")],
    ids=["nothing", "a store", "agents and a folder"],
)
def test_the_command_that_goes_on_names_the_same_place(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (terminal.folder / "crew.py").write_text(CREW)
    monkeypatch.delitem(sys.modules, "crew", raising=False)
    told = terminal.run("chat", *words, typed="hello\n")
    assert (told.code, told.err) == (0, ""), told
    again = terminal.run(*goes_on(told), typed="hello again\n")
    assert (again.code, "hello again" in again.out) == (0, True), again
    assert goes_on(again) == goes_on(told)


def test_what_goes_on_needs_no_words_for_what_the_environment_says_and_shows_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNWISE_STORE", "postgresql://jane:secret@db/chats")
    monkeypatch.setenv("TURNWISE_FILE_FOLDER", "files")
    same = chat_._words("shop:agents", store="postgresql://jane:secret@db/chats", file_folder=Path("files"), model=None)
    other = chat_._words(store="postgresql://jane:hunter2@db/others", file_folder=Path("mine"), model="demo")
    assert same == "turnwise chat shop:agents"
    assert shlex.split(other)[2:] == [
        "--store", "postgresql://jane:***@db/others", "--file-folder", "mine", "--model", "demo",
    ]  # fmt: skip
    assert chat_._words(store="sqlite:///turnwise.db") == "turnwise chat --store sqlite:///turnwise.db"
    assert chat_._words(server="https://chats") == "turnwise chat --server https://chats"


@pytest.mark.parametrize("target", [(), ("crew:agents",)], ids=["a model", "agents"])
def test_who_goes_on_with_a_chat_makes_no_store_for_it(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, target: tuple[str, ...]
) -> None:
    (terminal.folder / "crew.py").write_text(CREW)
    monkeypatch.delitem(sys.modules, "crew", raising=False)
    refused = terminal.run("chat", *target, "--chat", "c1", "--file-folder", "files")
    assert (refused.code, "there is no file 'turnwise.db'; name the store" in refused.words) == (2, True), refused
    assert not (terminal.folder / "turnwise.db").exists()
    assert not (terminal.folder / "files").exists()


@pytest.mark.parametrize("option", ["--system", "--agent"])
@pytest.mark.parametrize("place", [(), ("--server", "http://127.0.0.1:9")], ids=["here", "a service"])
def test_what_only_a_new_chat_takes_is_refused_for_one_that_is_there(
    terminal: Terminal, option: str, place: tuple[str, ...]
) -> None:
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


def test_what_is_typed_while_an_answer_streams_stays_whole_and_is_answered_next(terminal: Terminal) -> None:
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


def test_the_models_question_is_answered_at_the_prompt(terminal: Terminal) -> None:
    with Keyboard(terminal, ("chat", "--pace", "0")) as keyboard:
        keyboard.watch("»")
        keyboard.type("Ask the user “Which way?”\r")
        keyboard.watch("ask_user:")
        keyboard.type("To the left.\r")
        keyboard.watch("ask_user says: “To the left.”")
        keyboard.type(CTRL_C)
        keyboard.watch("The chat is kept")
        assert keyboard.process.wait() == 0


def test_only_the_demo_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = _paced("demo", 0.25)
    assert isinstance(demo, DemoModel)
    assert demo.pace == 0.25
    monkeypatch.setenv("OPENAI_API_KEY", "a-test-key")
    assert not hasattr(_paced("openai:gpt-5", 0.25), "pace")


CREW = """
from turnwise import Agent
from turnwise.providers.scripted import ScriptedModel

agents = [Agent(name, ScriptedModel(lambda request, name=name: f"{name} has heard it")) for name in ("one", "two")]
"""


def test_a_person_talks_to_agents_of_a_service(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
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


@tool(policy="ask")
def ring() -> str:
    """Ring a bell."""
    return "rung"


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        ([Agent("one", "demo", tools=[ring])], ""),
        ([Agent("one", "demo")], "a worker that runs agent 'one' with tool 'ring'; is one running?"),
        ([Agent("other", "demo")], "a worker that runs agent 'one' with tool 'ring'; is one running?"),
    ],
    ids=["run here", "without the tool", "without the agent"],
)
def test_who_waits_for_what_is_not_run_here_is_told_so(
    tmp_path: Path, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch, agents: list[Agent], told: str
) -> None:
    """Before the wait, as there may be no end to it."""
    screen, settings, store = screen_of(500), Settings(run_worker=False), f"sqlite:///{tmp_path}/chats.db"
    monkeypatch.setattr(chat_, "console", screen)
    ringing = Agent("one", ScriptedModel([Reply(calls=[Call("ring", {})])]), tools=[ring])
    with portal.wrap_async_context_manager(Engine(store, agents=[ringing])) as engine:
        chat = portal.call(engine.create_chat)
        asked = portal.call(engine.ask, chat.id, "Ring!")
    with portal.wrap_async_context_manager(Engine(store, agents=agents, settings=settings)) as engine:
        talk = Talk(portal, engine, chat, None)
        talk.tell_wait()
        assert lines_of(screen) == []
        approved = ToolResult(asked.open_calls[0].call_id, output=True)
        waiting = portal.call(engine.submit_tool_results, chat.id, [approved])

        async def no_rest(*_: Any) -> Chat:
            return waiting.chat

        monkeypatch.setattr(chat_, "show_until_rest", no_rest)
        talk._follow()
    assert told in "".join(lines_of(screen))
    assert bool(told) is bool(lines_of(screen))


@pytest.mark.parametrize("typed_at", [True, False])
@pytest.mark.parametrize("printed_on", [True, False])
def test_a_screen_is_drawn_only_where_somebody_types_and_watches(
    monkeypatch: pytest.MonkeyPatch, *, typed_at: bool, printed_on: bool
) -> None:
    drawn: list[Talk] = []

    class Drawn:
        def __init__(self, talk: Talk) -> None:
            self._talk = talk

        def run(self) -> None:
            drawn.append(self._talk)

    lines = io.StringIO()
    monkeypatch.setattr(lines, "isatty", lambda: typed_at)
    monkeypatch.setattr(sys, "stdin", lines)
    monkeypatch.setattr(chat_.console, "_force_terminal", printed_on)
    monkeypatch.setattr(terminal_, "TerminalTalk", Drawn)
    nobody = cast("Any", None)
    talk = Talk(nobody, nobody, None, None)
    talk.run()
    assert drawn == ([talk] if typed_at and printed_on else [])


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


def test_ctrl_c_in_a_pipe_stops_the_turn_and_waits_until_it_has_stopped(
    portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_what_was_said_so_far_is_a_line_of_its_own_when_a_chat_goes_on() -> None:
    screen = screen_of()
    model = ScriptedModel([Reply("One. Two.", chunks=["One. ", "Two."], delay=600)])
    async with Engine("sqlite://", model=model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "count")
        with anyio.fail_after(60):
            async with aclosing(engine.events(chat.id)) as events:
                async for event in events:
                    if isinstance(event, PartEvent) and event.part.delta:
                        break
            talk = Talk(cast("Any", None), engine, chat, None)
            talk.view.scroll = Scroll(screen)
            await talk._catch_up(chat.id)
        await engine.interrupt(chat.id)
    assert (lines_of(screen)[-1], talk.view.scroll.tail) == ("  One.~", "")


def test_a_stop_is_on_record_as_ctrl_c_and_a_chat_at_rest_is_not_stopped() -> None:
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
