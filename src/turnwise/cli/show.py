"""`turnwise list`, `turnwise show` and `turnwise explain`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import typer
from pydantic_core import from_json
from rich.console import Group
from rich.table import Table
from rich.text import Text

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.event_view import NOTE, THOUGHT, call_line, result_line, show_question, show_steered
from turnwise.cli.options import ChatArgument, time_in_utc, with_source
from turnwise.cli.screen import Scroll
from turnwise.cli.style import Report, clean, console, excerpt, is_narrow, moment, plain_table, state_text, tokens
from turnwise.engine.admin.explain import Explanation
from turnwise.engine.config.results import Chat, ChatCounts
from turnwise.states.errors import SettingsError
from turnwise.states.messages import (
    FilePart,
    MarkerPart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
)
from turnwise.states.names import Answerer

_TIMES: Final = ("turns", "changed (UTC)")
_TIMES_WIDTH: Final = 25
"""Of the columns with these names, and of the space before each."""
_ROOM_FOR_TIMES: Final = 80


@with_source()
def list_chats(  # noqa: PLR0913 - the options
    *,
    source: ChatSource,
    state: Annotated[str | None, typer.Option(help="Only chats in this state.")] = None,
    awaiting: Annotated[
        Answerer | None, typer.Option(help="Only chats that wait for answers of the client, or for subagents.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner's chats.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only chats that this agent answers.")] = None,
    title: Annotated[str | None, typer.Option(help="Only chats whose title contains this.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only chats with this metadata: JSON, or else text. May be repeated."),
    ] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only chats created then or later, UTC.")
    ] = None,
    created_before: Annotated[str | None, typer.Option(metavar="TIME", help="Only chats created earlier, UTC.")] = None,
    archived: Annotated[bool | None, typer.Option(help="Only archived chats, or only others.")] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Count the chats in each state, of --owner or of all.")
    ] = False,
    limit: Annotated[int, typer.Option(help="The maximum number of chats, newest first.")] = 50,
) -> Report:
    """List chats, newest first."""
    if count:
        return _report_counts(source.run(lambda chats: chats.count_chats(owner=owner)))
    wanted: dict[str, Any] = {
        "owner": owner,
        "agent": agent,
        "title": title,
        "metadata": None if metadata is None else dict(map(_entry, metadata)),
        "created_after": time_in_utc("--created-after", created_after),
        "created_before": time_in_utc("--created-before", created_before),
        "archived": archived,
    }
    page = source.run(lambda chats: chats.list_chats(state=state, awaiting=awaiting, limit=limit, **wanted))
    rest = [] if page.next is None else [Text(f"{len(page.items):,} shown; more with --limit", style=NOTE)]
    return Report(page.items, Group(_table(page.items) if page.items else "There is no such chat.", *rest))


def _entry(given: str) -> tuple[str, Any]:
    """Return an entry of metadata: its value is JSON, or else text."""
    key, equals, value = given.partition("=")
    if not equals:
        raise SettingsError("--metadata", f"must be KEY=VALUE; it was {given!r:.100}")
    try:
        return key, from_json(value, allow_inf_nan=False)
    except ValueError:
        return key, value


def _report_counts(counts: ChatCounts) -> Report:
    table = plain_table("state", "chats")
    for state, number in sorted(counts.states.items()):
        table.add_row(state_text(state), f"{number:,}")
    table.add_row("archived", f"{counts.archived:,}")
    return Report(counts, table)


def _state(chat: Chat) -> Text:
    """Return the state with the chat's marks."""
    state = state_text(chat.state).append(" unread" if chat.unread else "", style="bold")
    return state.append(" archived" if chat.archived else "", style="dim")


def _table(chats: Sequence[Chat]) -> Table:
    """Return the chats as a table. On a narrow screen ids are cut - their beginning names a chat - but no state is."""
    narrow, dated = is_narrow(), console.width >= _ROOM_FOR_TIMES
    table = plain_table("chat", "state", *(_TIMES if dated else ()), *(() if narrow else ("title",)))
    for column in table.columns[:4]:
        column.no_wrap = True
    table.columns[0].overflow = "ellipsis"
    rows = [(chat, _state(chat)) for chat in chats]
    table.columns[1].width = max(state.cell_len for _, state in rows)
    if narrow:
        rest = table.columns[1].width + 2 + (_TIMES_WIDTH if dated else 0)
        table.columns[0].max_width = max(console.width - rest, 1)
    for chat, state in rows:
        times = (str(chat.turn), f"{chat.updated_at:%Y-%m-%d %H:%M}") if dated else ()
        table.add_row(clean(chat.id), state, *times, *(() if narrow else (excerpt(chat.title or "", 60),)))
    return table


@with_source()
def show(
    chat: ChatArgument,
    *,
    source: ChatSource,
    view: Annotated[
        Literal["user", "model", "raw"],
        typer.Option(help="The view: `user`, what the user sees; `model`, what the model sees; `raw`, what is stored."),
    ] = "user",
) -> Report:
    """Show a chat with all its messages and open calls."""

    async def read(chats: Chats, chat_id: str) -> tuple[Chat, list[Message]]:
        return await chats.get_chat(chat_id), await chats.messages(chat_id, view=view)

    current, messages = source.on_chat(chat, read)
    return Report({"chat": current, "messages": messages}, partial(_print_chat, current, messages))


def _print_chat(chat: Chat, messages: Sequence[Message]) -> None:
    scroll = Scroll(console)
    for message in messages:
        show_message(scroll, message)
    for call in (call for call in chat.open_calls if call.is_client):
        show_question(scroll, call)
    console.print(summary(chat))


def summary(chat: Chat) -> Text:
    """Return the state of a chat in one line."""
    return Text.assemble(
        (f"{clean(chat.id)} ", "bold"),
        state_text(chat.state),
        (f" · version {chat.version} · turn {chat.turn} · {tokens(chat.usage)}{_context(chat)}", NOTE),
    )


def _context(chat: Chat) -> str:
    if not chat.context_tokens or not chat.context_limit:
        return ""
    share = round(100 * chat.context_tokens / chat.context_limit)
    return f" · context {chat.context_tokens:,} of {chat.context_limit:,} ({share} %)"


def show_message(scroll: Scroll, message: Message) -> None:
    """Print a message of the history."""
    if message.role == "user":
        if message.steered:
            show_steered(scroll, message)
        else:
            scroll.user_message(message.text or "(a file)")
        return
    if message.result is not None:
        line = result_line(message.result)
        scroll.line(Text(line.plain, style=NOTE) if message.synthetic else line)
        return
    for part in message.parts:
        _show_part(scroll, part)
        scroll.end_line()
    if message.partial:
        scroll.line(Text("■ stopped here", style="yellow"))


def _show_part(scroll: Scroll, part: Part) -> None:
    match part:
        case TextPart():
            scroll.write(part.text)
        case ReasoningPart() if part.text:
            scroll.write(part.text, style=THOUGHT)
        case ToolCallPart():
            scroll.line(call_line(part))
        case MarkerPart():
            scroll.line(Text(f"── {clean(part.text)}", style="magenta"))
        case SourcePart() | FilePart():
            name = part.url or (part.title or part.id if isinstance(part, SourcePart) else None)
            scroll.line(Text(f"• {clean(name or 'a file')}", style=NOTE))


@with_source()
def explain(chat: ChatArgument, *, source: ChatSource) -> Report:
    """Explain the state of a chat: why it does not move, and which triggers it accepts."""
    explanation = source.on_chat(chat, lambda chats, chat_id: chats.explain(chat_id))
    code = 1 if explanation.broken_invariants or explanation.unreadable else 0
    return Report(explanation, explanation_table(explanation), code)


def explanation_table(explanation: Explanation) -> Table:
    """Return the rows that have a value."""
    lines = {
        "why": clean(explanation.reason),
        "since": moment(explanation.since),
        "lease of": clean(explanation.lease_worker or ""),
        "lease until": moment(explanation.lease_expires),
        "next timer": moment(explanation.next_timer),
        "open calls": clean(
            ", ".join(f"{call.name} ({call.call_id}, {call.status})" for call in explanation.open_calls)
        ),
        "queue": str(explanation.queued or ""),
        "scheduled": clean(", ".join(f"{one.id} at {moment(one.due)}" for one in explanation.schedules)),
        "last error": excerpt(explanation.last_error.message, 300) if explanation.last_error else "",
        "in detail": excerpt(explanation.last_error.detail or "", 1000) if explanation.last_error else "",
        "may come": ", ".join(explanation.legal_triggers),
        "unreadable": clean("; ".join(f"{issue.column}: {issue.problem}" for issue in explanation.unreadable)),
        "broken": ", ".join(explanation.broken_invariants),
    }
    table = plain_table("", "")
    table.columns[0].style = "dim"
    table.columns[0].no_wrap = True
    table.add_row("state", state_text(explanation.state))
    for name, value in lines.items():
        if value:
            table.add_row(name, value)
    return table
