"""A conversation at a terminal: what is typed stays whole while an answer streams, and Ctrl-C stops what runs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import DummyInput, PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.output.vt100 import Vt100_Output

from turnwise.cli.terminal import TerminalTalk
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.events import StatusEvent, ToolResultEvent
from turnwise.states.names import ChatState, Executor


class Engaged:
    """What a conversation at a terminal talks through: it notes what it is asked for."""

    def __init__(self, asked: list[ToolCall]) -> None:
        self.chat_id: str | None = "c"
        self.done: list[Any] = []
        self.portal = self
        self.view = self
        self.scroll = self
        self.tail = "so far"
        self.after = 3
        self.chats = self
        self.accepts = True
        self.waits = 0
        self._asked = asked

    def do(self, line: str) -> None:
        self.done.append(line)

    def submit(self, results: list[ToolResult]) -> bool:
        self.done.append([*results])
        return self.accepts

    def tell_wait(self) -> None:
        self.waits += 1

    def stop(self) -> None:
        self.done.append("stop")

    def show(self, event: StatusEvent) -> None:
        self.done.append(event.seq)

    def tell_states(self) -> None:
        self.done.append("told")

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
        anyio.run(terminal._rested, "c")
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


def test_answered_question_is_withdrawn() -> None:
    """The answers to the others begin anew, as all that is open is answered at once."""
    talk = Engaged([call(1, "pay", "asked"), call(2, "say")])
    with create_app_session(input=DummyInput(), output=DummyOutput()):
        terminal = TerminalTalk(talk)  # type: ignore[arg-type]

        async def events(_: str, *, after: int) -> AsyncIterator[Any]:
            terminal._take("y")
            yield result(after + 1, "another")
            assert terminal._message() == "  say: "
            talk._asked = talk._asked[1:]
            yield result(after + 2, "c1")
            terminal._take("to the left")
            talk._asked = []
            yield result(after + 3, "c2")
            assert terminal._message() == "» "

        talk.events = events  # type: ignore[attr-defined]
        anyio.run(terminal._show, "c")
    assert talk.done == [4, 5, [ToolResult("c2", "to the left")], 6]


def result(seq: int, call_id: str) -> ToolResultEvent:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    said: Any = {"name": "pay", "output": "y", "is_error": False, "step": 1, "index": 0, "outcome": "succeeded"}
    return ToolResultEvent(chat_id="c", seq=seq, at=at, call_id=call_id, **said)


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


def test_toolbar_shows_the_state() -> None:
    class Streaming(Visited):
        looked = 0

        @property
        def tail(self) -> str:
            self.looked += 1
            if self.looked == 4:
                self.keys.send_text("/quit\r")
            return f"word {self.looked}"

        @tail.setter
        def tail(self, _: str) -> None: ...

    with at_a_terminal() as (visited, screen):
        visited.keys.send_text("\x1b[1;1R")  # where the cursor is: there is room for a toolbar
        talk = Streaming(visited.keys)
        TerminalTalk(talk).run()  # type: ignore[arg-type]
    assert " waiting  word 1" in screen.getvalue()
    assert talk.looked >= 4
