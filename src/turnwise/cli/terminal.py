"""A chat that streams above the typed line, by prompt_toolkit."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from turnwise.cli.screen import PROMPT, answer_to, is_command, question_of
from turnwise.cli.style import excerpt
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.events import StatusEvent, ToolResultEvent
from turnwise.states.names import RESTING, ChatState

if TYPE_CHECKING:
    from turnwise.cli.chat import Talk

_REFRESH: Final = 0.2
"""Seconds between two updates of the toolbar."""


class _Questions(msgspec.Struct, frozen=True):
    """The open calls of the client, and the answers so far: replaced as a whole, because two threads read it."""

    calls: Sequence[ToolCall] = ()
    answers: list[ToolResult] = msgspec.field(default_factory=list)

    @property
    def next(self) -> ToolCall | None:
        """The call that the next answer is for; none once all are answered."""
        return self.calls[len(self.answers)] if len(self.answers) < len(self.calls) else None


class TerminalTalk:
    """Follows the chat in the engine's thread, and reads the keyboard in this one."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._state = ChatState.waiting
        self._questions = _Questions()
        self._following: Future[None] | None = None
        keys = KeyBindings()
        keys.add("c-c")(self._stop)
        keys.add("<sigint>")(self._stop)
        self._session: PromptSession[str] = PromptSession(
            self._message, key_bindings=keys, bottom_toolbar=self._toolbar, refresh_interval=_REFRESH
        )

    def run(self) -> None:
        """Talk until the person leaves."""
        with _exits_on_signals(), patch_stdout(raw=True), contextlib.suppress(EOFError, KeyboardInterrupt):
            try:
                self._follow()
                while (line := self._session.prompt().strip()) != "/quit":
                    self._take(line)
            finally:
                if self._following is not None:
                    self._following.cancel()

    def _take(self, line: str) -> None:
        questions = self._questions
        if (call := questions.next) is not None and not is_command(line):
            questions.answers.append(answer_to(call, line))
            if questions.next is None and not self._talk.submit(questions.answers):
                questions.answers.clear()  # so that they are asked again, if they still are open
            self._talk.explain_wait()
            return
        self._talk.do(line)
        self._follow()

    def _follow(self) -> None:
        if self._following is None and self._talk.chat_id is not None:
            self._following = self._talk.portal.start_task_soon(self._show, self._talk.chat_id)
        self._talk.explain_wait()

    async def _show(self, chat_id: str) -> None:
        view = self._talk.view
        async with aclosing(self._talk.chats.events(chat_id, after=view.after)) as events:
            await self._read_state(chat_id)
            async for event in events:
                view.show(event)
                match event:
                    case StatusEvent() if event.state in RESTING:
                        await self._read_state(chat_id)
                        view.print_states()
                    case StatusEvent():
                        self._state = event.state
                        self._questions = _Questions()
                    case ToolResultEvent() if event.call_id in {call.call_id for call in self._questions.calls}:
                        await self._read_state(chat_id)

    async def _read_state(self, chat_id: str) -> None:
        chat = await self._talk.chats.get_chat(chat_id)
        self._state = chat.state
        self._questions = _Questions(
            [call for call in chat.open_calls if call.is_client and chat.state is ChatState.requires_action]
        )

    def _stop(self, event: KeyPressEvent) -> None:
        """Stop the turn under way and keep the typed text; if nothing runs, leave."""
        if self._talk.chat_id is not None and (self._state not in RESTING or self._questions.next):
            self._talk.stop()
        else:
            event.app.exit(exception=EOFError)

    def _message(self) -> str:
        call = self._questions.next
        return PROMPT if call is None else question_of(call)

    def _toolbar(self) -> str:
        under_way = excerpt(self._talk.view.scroll.tail, 60)
        return f" {self._state}  {under_way}"


@contextlib.contextmanager
def _exits_on_signals() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM and SIGHUP, so that the terminal is restored and the chats are released.

    The next signal ends the process at once.
    """
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def end(number: int, _frame: object) -> None:
        restore()
        raise SystemExit(128 + number)

    def restore() -> None:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)

    replaced = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()
