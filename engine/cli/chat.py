"""`turnwise chat`: talk in the terminal."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Final

import typer
from anyio.from_thread import BlockingPortal, start_blocking_portal
from rich.padding import Padding
from rich.text import Text

from turnwise.engine.chat import Chat
from turnwise.engine.cli.choosing import chosen
from turnwise.engine.cli.event_view import NOTE, EventView, call_line, show_until_rest
from turnwise.engine.cli.explain import explanation_table
from turnwise.engine.cli.files import file_tools
from turnwise.engine.cli.keyboard import typed
from turnwise.engine.cli.look import clean, console
from turnwise.engine.cli.options import DEFAULT_STORE, ModelOption, StoreOption
from turnwise.engine.cli.scroll import Scroll
from turnwise.engine.cli.show import show_message
from turnwise.engine.engine import Engine
from turnwise.engine.models import model_from
from turnwise.engine.settings import Settings
from turnwise.providers.demo import DemoModel
from turnwise.providers.protocol import Model
from turnwise.states.calls import ClientTool, ToolCall, ToolResult
from turnwise.states.errors import IllegalTransition, TurnwiseError
from turnwise.states.names import ChatState
from turnwise.states.transcript import fold

ASK_USER: Final = ClientTool(
    "ask_user",
    "Ask the user a question and wait for the answer.",
    {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
)
PROMPT: Final = "» "
HELP: Final = """\
  /state    where the chat stands, and why
  /resume   go on after a stop or an error
  /compact  summarise what was said so far
  /clear    let the model start anew; the transcript stays
  /quit     leave; the chat is kept
  Ctrl-C stops the turn under way; at the prompt it leaves."""


def chat(
    *,
    store: StoreOption = DEFAULT_STORE,
    chat_id: Annotated[str | None, typer.Option("--chat", metavar="CHAT", help="Go on with this chat.")] = None,
    model: ModelOption = "demo",
    system: Annotated[str | None, typer.Option(help="What the model is told first, in a new chat.")] = None,
    pace: Annotated[float | None, typer.Option(help="Seconds between two words of the demo model.")] = None,
) -> None:
    """Talk. The model may read the files below this folder; Ctrl-C stops a turn and keeps the chat."""
    if pace is None:
        pace = 0.02 if console.is_terminal else 0
    settings = Settings(shutdown_grace=1)
    engine = Engine(store, model=_paced(model, pace), tools=file_tools(Path.cwd()), settings=settings)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(engine):
        Conversation(portal, engine, portal.call(_opened, engine, chat_id, system)).run()


class Conversation:
    """A person at a prompt and a chat. The engine runs in a thread of its own, so Ctrl-C reaches the prompt."""

    def __init__(self, portal: BlockingPortal, engine: Engine, chat: Chat) -> None:
        self._portal = portal
        self._engine = engine
        self._id = chat.id
        self._view = EventView(Scroll(console), echo=False)

    def run(self) -> None:
        """Talk until the person leaves."""
        console.print(Text.assemble((self._id, "bold"), (" · /help tells what else can be typed", NOTE)))
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            self._portal.call(self._catch_up)
            self._follow()
            while (line := typed(PROMPT)) != "/quit":
                try:
                    self._do(line)
                except TurnwiseError as error:
                    console.print(Padding(Text(clean(str(error)), style="red"), (0, 0, 0, 2), expand=False))
        console.print(Text(f"The chat is kept; `turnwise chat --chat {self._id}` goes on with it.", style=NOTE))

    def _do(self, line: str) -> None:
        engine, portal = self._engine, self._portal
        match line:
            case "":
                return
            case "/help":
                console.print(HELP, style=NOTE)
                return
            case "/state":
                console.print(explanation_table(portal.call(engine.explain, self._id)))
                return
            case "/compact":
                portal.call(engine.request_compaction, self._id)
            case "/clear":
                portal.call(engine.clear_context, self._id)
                console.print(Text("  The model starts anew; the transcript stays.", style=NOTE))
            case "/resume":
                portal.call(engine.resume, self._id)
            case _ if line.startswith("/"):
                console.print(Text(f"  There is no {clean(line.split(maxsplit=1)[0])}.", style="red"))
                console.print(HELP, style=NOTE)
                return
            case _:
                portal.call(engine.send_message, self._id, line)
        self._follow()

    def _follow(self) -> None:
        """Show the turn to its end; where the model asks the client, ask the person."""
        while (chat := self._rested()).state is ChatState.requires_action:
            results = []
            for call in chat.open_calls:
                try:
                    results.append(_answer(call))
                except KeyboardInterrupt:
                    self._portal.call(self._interrupt)
                    break
            else:
                self._portal.call(self._engine.submit_tool_results, self._id, results)
        self._view.tell_states()

    def _rested(self) -> Chat:
        shown: Future[Chat] = self._portal.start_task_soon(show_until_rest, self._engine, self._id, self._view)
        try:
            return shown.result()
        except KeyboardInterrupt:
            self._portal.call(self._interrupt)
            return shown.result()
        finally:
            shown.cancel()

    async def _interrupt(self) -> None:
        with contextlib.suppress(IllegalTransition):  # it came to rest just before
            await self._engine.interrupt(self._id, reason="Ctrl-C")

    async def _catch_up(self) -> None:
        transcript = fold([event async for event in self._engine.events(self._id, follow=False)])
        for message in transcript.messages:
            show_message(self._view.scroll, message)
        self._view.scroll.write(transcript.live_text)
        self._view.scroll.end_line()
        for call in transcript.open_calls:
            self._view.scroll.line(call_line("?", call, "yellow"))
        self._view.after = transcript.last_seq


def _answer(call: ToolCall) -> ToolResult:
    if call.approval == "asked":
        return ToolResult(call.call_id, typed(f"  allow {call.name}? (y/n) ").lower() in ("y", "yes"))
    return ToolResult(call.call_id, typed(f"  {call.name}: "))


def _paced(name: str, pace: float) -> Model:
    model = model_from(name)
    if isinstance(model, DemoModel):
        model.pace = pace
    return model


async def _opened(engine: Engine, chat_id: str | None, system: str | None) -> Chat:
    if chat_id is not None:
        return await chosen(engine, chat_id)
    return await engine.create_chat(system=system, client_tools=[ASK_USER])
