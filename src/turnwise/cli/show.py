"""`turnwise show`: a chat's transcript."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.text import Text

from turnwise.cli.chat_argument import Chats, on_chat
from turnwise.cli.connected import place_of
from turnwise.cli.event_view import NOTE, THOUGHT, call_line, show_question
from turnwise.cli.options import DEFAULT_STORE, ChatArgument, JsonOption, ServerOption, StoreOption
from turnwise.cli.scroll import Scroll
from turnwise.cli.style import clean, console, excerpt, print_json, state_text, tokens
from turnwise.engine.config.results import Chat
from turnwise.states.messages import FilePart, MarkerPart, Message, ReasoningPart, SourcePart, TextPart, ToolCallPart


def show(
    chat: ChatArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    view: Annotated[
        Literal["user", "model", "raw"],
        typer.Option(help="What a user sees, what the model is sent, or what was said."),
    ] = "user",
    as_json: JsonOption = False,
) -> None:
    """Show a chat and all that was said in it; what it asks of its client, whole."""

    async def read(chats: Chats, chat_id: str) -> tuple[Chat, list[Message]]:
        return await chats.get_chat(chat_id), await chats.messages(chat_id, view=view)

    current, messages = on_chat(place_of(store, server), chat, read)
    if as_json:
        print_json({"chat": current, "messages": messages})
        return
    scroll = Scroll(console)
    for message in messages:
        show_message(scroll, message)
    for call in (call for call in current.open_calls if call.is_client):
        show_question(scroll, call)
    console.print(summary(current))


def summary(chat: Chat) -> Text:
    """Return where a chat stands, in one line."""
    return Text.assemble(
        (f"{clean(chat.id)} ", "bold"),
        state_text(chat.state),
        (f" · version {chat.version} · turn {chat.turn} · {tokens(chat.usage)}", NOTE),
    )


def show_message(scroll: Scroll, message: Message) -> None:
    """Print a message of the history."""
    if message.role == "user":
        scroll.user_message(message.text or "(a file)")
        return
    if message.result is not None:
        mark, style = ("✗", "red") if message.result.is_error else ("✓", "green")
        text = f"{mark} {clean(message.result.name)} → {excerpt(message.result.output, 300)}"
        scroll.line(Text(text, style=NOTE if message.synthetic else style))
        return
    for part in message.parts:
        match part:
            case TextPart():
                scroll.write(part.text)
            case ReasoningPart() if part.text:
                scroll.write(part.text, style=THOUGHT)
            case ToolCallPart():
                scroll.line(call_line("▸", part, "cyan"))
            case MarkerPart():
                scroll.line(Text(f"── {clean(part.text)}", style="magenta"))
            case SourcePart() | FilePart():
                name = part.url or (part.title or part.id if isinstance(part, SourcePart) else None)
                scroll.line(Text(f"• {clean(name or 'a file')}", style=NOTE))
        scroll.end_line()
    if message.partial:
        scroll.line(Text("■ stopped here", style="yellow"))
