"""Events as lines of a terminal."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import anyio
from rich.text import Text

from turnwise.cli.connect import Chats
from turnwise.cli.screen import Scroll
from turnwise.cli.style import clean, excerpt, in_json, state_text, tokens
from turnwise.engine.config.results import Chat
from turnwise.states.calls import ToolCall
from turnwise.states.events import (
    ActionRequiredEvent,
    AttemptDiscardedEvent,
    CompactionEvent,
    ErrorEvent,
    Event,
    MessageEvent,
    PartDelta,
    PartEvent,
    QueueEvent,
    RetryEvent,
    StatusEvent,
    ToolProgressEvent,
    ToolResultEvent,
    TurnFinishedEvent,
)
from turnwise.states.messages import Message, ToolCallPart, ToolResultPart
from turnwise.states.names import ChatState, Executor

THOUGHT: Final = "dim italic"
NOTE: Final = "dim"
_IN_QUOTES: Final = str.maketrans({"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


_IN_QUEUE: Final = {
    "added": "waits in the queue",
    "edited": "is changed in the queue",
    "moved": "moves up in the queue",
    "deleted": "is deleted from the queue",
}
"""Changes of a queued message. When it is taken, the message itself is shown."""


class EventView:
    """Shows the events of one chat, and remembers how far it is and which states it saw."""

    def __init__(self, scroll: Scroll, *, echo: bool = True) -> None:
        self.scroll = scroll
        self.after = 0
        """The number of the last event that was shown."""
        self.states: list[str] = []
        """The states seen since the last `print_states`."""
        self.live_text = ""
        """The text shown of the reply under way."""
        self._echo = echo
        self._message_ids: set[str] = set()
        """The ids of the messages that were shown."""

    def show(self, event: Event) -> None:  # noqa: C901, PLR0912 - one case per kind of event
        """Show an event that follows the last one."""
        self.after = event.seq
        match event:
            case StatusEvent():
                self._enter(event)
            case PartEvent():
                self._add(event.part)
            case MessageEvent():
                self._conclude(event.message)
            case ToolResultEvent():
                self.scroll.line(result_line(event))
            case ToolProgressEvent():
                self._line("…", f"{event.call_id}: {excerpt(event.progress, 200)}", NOTE)
            case ActionRequiredEvent():
                for call in event.calls:
                    show_question(self.scroll, call)
            case RetryEvent():
                then = f"{event.next_model} is asked instead"
                then = then if event.next_model is not None else f"next attempt in {event.delay:g} s"
                self._line("↻", f"{event.error.message}; {then}", "yellow")
            case AttemptDiscardedEvent():
                self.live_text = ""
                self._line("↶", f"attempt {event.attempt} is taken back: {event.reason}", "yellow")
            case CompactionEvent():
                self._compaction(event)
            case QueueEvent() if event.change in _IN_QUEUE:
                steers = event.change == "added" and event.message is not None and event.message.steers
                what = "steers the turn" if steers else _IN_QUEUE[event.change]
                self._line("≡", f"{', '.join(event.ids)} {what}", NOTE)
            case TurnFinishedEvent():
                self._line("◦", f"turn {event.turn} ended: {event.stop_reason} · {tokens(event.usage)}", NOTE)
            case ErrorEvent():
                self._line("✗", event.error.message, "red")

    def print_states(self) -> None:
        """Print the states seen since the last time."""
        if self.states:
            self.scroll.trail(self.states)
        self.states = self.states[-1:]

    def _enter(self, event: StatusEvent) -> None:
        if not self.states and event.previous is not None:
            self.states.append(event.previous)
        self.states.append(event.state)
        self.scroll.status = state_text(event.state)

    def _add(self, part: PartDelta) -> None:
        if part.type == "text" and part.delta is not None:
            self.live_text += part.delta
            self.scroll.write(part.delta)
        elif part.type == "reasoning" and part.delta is not None:
            self.scroll.write(part.delta, style=THOUGHT)

    def _conclude(self, message: Message) -> None:
        if message.id in self._message_ids:  # a part of it was erased
            return
        self._message_ids.add(message.id)
        self.scroll.end_line()
        if message.role == "user" and self._echo:
            self.scroll.user_message(message.text or "(a file)")
        elif message.steered:
            show_steered(self.scroll, message)
        elif message.role == "assistant":
            self.live_text = ""
            for call in (call for call in message.calls if call.executor is not Executor.client):
                self.scroll.line(call_line(call))

    def _compaction(self, event: CompactionEvent) -> None:
        match event.phase:
            case "started" if event.percent is not None:
                text = f"the context is {event.percent:g} % full ({event.context_tokens:,} of {event.context_limit:,})"
            case "finished":
                text = f"{event.folded} messages are folded into a summary, {event.carried} carried on as they are"
                text += "" if event.tokens_after is None else f"; about {event.tokens_after:,} tokens are left"
            case "declined":
                text = "there was nothing to fold"
            case "failed" if event.error is not None:
                text = f"failed, and nothing changed: {event.error.message}"
            case "started" | "unproductive":
                text = event.phase
            case _:
                return
        self._line("⇣", f"compaction: {text}", "magenta")

    def _line(self, mark: str, text: str, style: str) -> None:
        self.scroll.line(Text(f"{mark} {clean(text)}", style=style))


def show_steered(scroll: Scroll, message: Message) -> None:
    """Print a message that has steered its turn, where it entered it."""
    scroll.paragraph(clean(f"≡ {message.id} enters the turn: {message.text or '(a file)'}"), NOTE)


def result_line(result: ToolResultEvent | ToolResultPart) -> Text:
    """Return a result in one line, cut if it is long."""
    mark, style = ("✗", "red") if result.is_error else ("✓", "green")
    return Text(f"{mark} {clean(result.name)} → {excerpt(result.output, 300)}", style=style)


def show_question(scroll: Scroll, call: ToolCall) -> None:
    """Print a call that waits for its client, every argument whole: a person may have to allow or answer it.

    If it does not fit into a line, its arguments have lines of their own, as many as they need.
    """
    head, arguments = (f"? {clean(call.name)}", "yellow"), _arguments(call)
    line = Text.assemble(head, f"({', '.join(arguments)})")
    if line.cell_len <= scroll.width:
        scroll.line(line)
        return
    scroll.paragraph(*head)
    for argument in arguments:
        scroll.paragraph(argument, indent=1)


def call_line(call: ToolCall | ToolCallPart) -> Text:
    """Return a call with its arguments in one line, the longest of them cut."""
    arguments = ", ".join(_arguments(call, most=120))
    return Text.assemble((f"▸ {clean(call.name)}", "cyan"), f"({arguments})")


def _arguments(call: ToolCall | ToolCallPart, *, most: int | None = None) -> list[str]:
    """Return arguments by name, each value cut at `most` characters: text in quotes, so that none can forge another."""
    return [
        f"{name if name.isidentifier() else _quote(name, most)}="
        f"{_quote(value, most) if isinstance(value, str) else _cut(in_json(value), most)}"
        for name, value in call.arguments.items()
    ]


def _quote(text: str, most: int | None) -> str:
    return f"'{_cut(text.translate(_IN_QUOTES), most)}'"


def _cut(text: str, most: int | None) -> str:
    return clean(text) if most is None else excerpt(text, most)


async def show_until_rest(chats: Chats, chat_id: str, view: EventView) -> Chat:
    """Show what happens until the chat rests, and return the chat as it rests."""
    with view.scroll:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_follow, chats, chat_id, view)
                chat = await chats.wait(chat_id)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        async for event in chats.events(chat_id, after=view.after, follow=False):
            view.show(event)
    if chat.state is ChatState.interrupted:
        view.scroll.line(Text("■ stopped; the text so far is kept", style="yellow"))
    return chat


async def _follow(chats: Chats, chat_id: str, view: EventView) -> None:
    async with aclosing(chats.events(chat_id, after=view.after)) as events:
        async for event in events:
            view.show(event)
