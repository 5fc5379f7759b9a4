"""`turnwise chat`: talk in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from anyio.from_thread import BlockingPortal, start_blocking_portal
from rich.padding import Padding
from rich.text import Text

from turnwise.cli.connect import Chats, ChatSource, check_is_there, chosen_id, connected, files_to_run_with
from turnwise.cli.event_view import NOTE, EventView, show_question, show_until_rest
from turnwise.cli.failures import DONE, exit_code_of
from turnwise.cli.options import DEFAULT_STORE, FileFolderOption, ModelOption, ServerOption, StoreOption
from turnwise.cli.screen import PROMPT, STEER, Scroll, answer_to, is_command, question_of, typed
from turnwise.cli.show import explanation_table, show_message
from turnwise.cli.style import clean, console
from turnwise.cli.target import OptionalTarget, engine_of, file_tools, typed_options
from turnwise.engine.config.results import Chat
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.providers.demo import DemoModel
from turnwise.providers.from_name import model_named
from turnwise.providers.protocol import Model
from turnwise.states.calls import ClientTool, ToolResult
from turnwise.states.errors import IllegalTransition, SettingsError, TurnwiseError
from turnwise.states.names import RESTING, ChatState, WhenBusy
from turnwise.states.transcript import fold

ASK_USER: Final = ClientTool(
    "ask_user",
    "Ask the user a question and wait for the answer.",
    {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
)
_NAME_IT: Final = "name the store that has the chat"
HELP: Final = """\
  /state    where the chat stands, and why
  /resume   go on after a stop or an error
  /steer    say the rest of the line in the middle of the turn under way
  /compact  summarise the conversation so far
  /clear    let the model start anew; the transcript stays
  /quit     leave; the chat is kept
  Where the model asks something, any other line is the answer.
  Ctrl-C stops the turn under way; at the prompt it leaves."""


def chat(  # noqa: PLR0913 - the options of a command
    context: typer.Context,
    target: OptionalTarget = None,
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    file_folder: FileFolderOption = None,
    chat_id: Annotated[str | None, typer.Option("--chat", metavar="CHAT", help="Continue this chat.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that answers a new chat.")] = None,
    model: ModelOption = None,
    system: Annotated[str | None, typer.Option(help="The system prompt of a new chat.")] = None,
    pace: Annotated[
        float | None,
        typer.Option(min=0, max=3600, help="Seconds between two words of the demo model."),
    ] = None,
) -> None:
    """Chat with your agents, or with a model that may read the files in this folder.

    Ctrl-C stops a turn and keeps the chat.
    """
    if chat_id is not None:
        _refuse({"--system": system, "--agent": agent}, "is for a new chat: leave it out, or --chat")
    if server is not None:
        mine = {"MODULE:ATTRIBUTE": target, "--model": model, "--pace": pace, "--file-folder": file_folder}
        _refuse(mine, "is for chats that run here; those of a service run there: leave it out")
        _talk(connected(ChatSource.named(store, server).url), chat_id, system, agent)
        return
    settings = Settings(shutdown_grace=1)
    is_new = chat_id is None
    if target is None:
        if pace is None:
            pace = 0.02 if console.is_terminal else 0
        if not is_new:
            check_is_there(store, _NAME_IT)
        files = files_to_run_with(file_folder, create=is_new)
        answering = _paced(model or "demo", pace)
        engine = Engine(store, files=files, model=answering, tools=file_tools(Path.cwd()), settings=settings)
    elif model is not None:
        raise SettingsError("--model", "your agents have models of their own; leave it out")
    else:
        engine = engine_of(
            target,
            store=store,
            file_folder=file_folder,
            create=is_new,
            right=_NAME_IT,
            settings=settings,
            typed=typed_options(context),
        )
    _talk(engine, chat_id, system, agent)


def _refuse(options: Mapping[str, object], problem: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise SettingsError(option, problem)


def _talk(
    opened: AbstractAsyncContextManager[Chats], chat_id: str | None, system: str | None, agent: str | None
) -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as chats:
        chat = None if chat_id is None else portal.call(chats.get_chat, portal.call(chosen_id, chats, chat_id))
        talk = Talk(portal, chats, chat, system, agent)
        talk.run()
        if talk.chat_id is not None:
            text = f"The chat is kept; the same command with `--chat {clean(talk.chat_id)}` goes on with it."
            console.print(Text(text, style=NOTE), soft_wrap=True)
    if talk.code:
        raise typer.Exit(talk.code)


class Talk:
    """A person at a prompt and a chat. Engine or client run in a thread of their own, so Ctrl-C reaches the prompt."""

    def __init__(
        self,
        portal: BlockingPortal,
        chats: Chats,
        chat: Chat | None,
        system: str | None,
        agent: str | None = None,
    ) -> None:
        self.portal = portal
        self.chats = chats
        self.chat_id = None if chat is None else chat.id
        """The chat; there is none before the first message, so leaving leaves no empty chat behind."""
        self.view = EventView(Scroll(console), echo=False)
        self.code = DONE
        """The exit code: whether a line of those that came from a pipe was refused."""
        self._system = system
        self._agent = agent

    def run(self) -> None:
        """Talk until the person leaves."""
        console.print(
            Text.assemble((clean(self.chat_id or "a new chat"), "bold"), (" · /help lists what can be typed", NOTE))
        )
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            if self.chat_id is not None:
                self.portal.call(self._catch_up, self.chat_id)
            if sys.stdin.isatty() and console.is_terminal:
                from turnwise.cli.terminal import TerminalTalk  # noqa: PLC0415 - takes long to import

                TerminalTalk(self).run()
            else:
                self._read_all()

    def submit(self, results: Sequence[ToolResult]) -> bool:
        """Answer the model's question; return whether the answer was accepted, or another client was faster."""
        with self._refusal_printed():
            self._submit(results)
            return True
        return False

    def stop(self) -> None:
        """Interrupt the turn under way."""
        with self._refusal_printed(), contextlib.suppress(IllegalTransition):  # it came to rest just before
            if self.chat_id is not None:
                self.portal.call(partial(self.chats.interrupt, self.chat_id, reason="Ctrl-C"))

    def do(self, line: str) -> None:
        """Execute a typed line; print a refusal among the answers."""
        with self._refusal_printed():
            self._do(line)

    def explain_wait(self) -> None:
        """Print the reason if the chat waits for an agent or a tool that this process does not run."""
        if self.chat_id is None or not isinstance(self.chats, Engine):
            return
        with self._refusal_printed():
            why = self.portal.call(self.chats.explain, self.chat_id)
            tools = self.chats.agents.get(why.agent)
            is_run_here = tools is not None and {*why.tools_needed} <= {*tools}
            if why.state not in RESTING and why.lease_worker is None and not is_run_here:
                console.print(Text(f"  {clean(why.reason)}", style=NOTE))

    @contextlib.contextmanager
    def _refusal_printed(self) -> Iterator[None]:
        try:
            yield
        except TurnwiseError as refusal:
            console.print(Padding(Text(clean(str(refusal)), style="red"), (0, 0, 0, 2), expand=False))

    @contextlib.contextmanager
    def _refusal_counted(self) -> Iterator[None]:
        try:
            yield
        except TurnwiseError as refusal:
            self.code = max(self.code, exit_code_of(refusal))

    def _read_all(self) -> None:
        self._follow()
        while (line := typed(PROMPT)) != "/quit":
            with self._refusal_counted():
                self._do(line)
            self._follow()

    def _submit(self, results: Sequence[ToolResult]) -> None:
        if self.chat_id is not None:
            self.portal.call(self.chats.submit_tool_results, self.chat_id, results)

    def _do(self, line: str) -> None:
        chats, portal = self.chats, self.portal
        if line and not line.startswith("/") and self.chat_id is None:
            created = partial(chats.create_chat, system=self._system, agent=self._agent, client_tools=[ASK_USER])
            self.chat_id = portal.call(partial(created, message=line)).id
            return
        chat_id = self.chat_id
        match line:
            case "":
                return
            case "/help":
                console.print(HELP, style=NOTE)
            case _ if line.startswith("/") and not is_command(line):
                raise SettingsError(
                    line.split(maxsplit=1)[0], "there is no such command; /help lists what can be typed"
                )
            case _ if chat_id is None:
                console.print(Text("  There is no chat yet: it begins with your first message.", style=NOTE))
            case "/state":
                console.print(explanation_table(portal.call(chats.explain, chat_id)))
            case "/compact":
                portal.call(chats.request_compaction, chat_id)
            case "/clear":
                portal.call(chats.clear_context, chat_id)
                console.print(Text("  The model starts anew; the transcript stays.", style=NOTE))
            case "/resume":
                portal.call(chats.resume, chat_id)
            case _:
                when_busy: WhenBusy = "steer" if line.startswith(STEER) else "queue"
                portal.call(partial(chats.send_message, chat_id, line.removeprefix(STEER), when_busy=when_busy))

    def _follow(self) -> None:
        """Show the turn to its end; where the model asks the client, ask the person."""
        if self.chat_id is None:
            return
        while (chat := self._wait_for_rest(self.chat_id)).state is ChatState.requires_action:
            results = []
            for call in (call for call in chat.open_calls if call.is_client):
                try:
                    results.append(answer_to(call, typed(question_of(call))))
                except KeyboardInterrupt:
                    self.stop()
                    break
            else:
                with self._refusal_counted():
                    self._submit(results)
        self.view.print_states()

    def _wait_for_rest(self, chat_id: str) -> Chat:
        self.explain_wait()
        future: Future[Chat] = self.portal.start_task_soon(show_until_rest, self.chats, chat_id, self.view)
        try:
            return future.result()
        except KeyboardInterrupt:
            self.stop()
            return future.result()
        finally:
            future.cancel()

    async def _catch_up(self, chat_id: str) -> None:
        transcript = fold([event async for event in self.chats.events(chat_id, follow=False)])
        for message in transcript.messages:
            show_message(self.view.scroll, message)
        self.view.scroll.write(transcript.live_text)
        self.view.scroll.end_line()
        for call in transcript.open_calls:
            show_question(self.view.scroll, call)
        self.view.after = transcript.last_seq


def _paced(name: str, pace: float) -> Model:
    model = model_named(name)
    if isinstance(model, DemoModel):
        model.pace = pace
    return model
