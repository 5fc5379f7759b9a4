"""Commands for scheduled messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from rich.table import Table

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.options import ChatArgument, parse_time, with_source
from turnwise.cli.style import Report, clean, excerpt, moment, plain_table
from turnwise.states.messages import ScheduledMessage


@with_source("actor")
def schedule(  # noqa: PLR0913 - the options
    chat: ChatArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The text of the message.")],
    *,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="The time, such as 2027-01-31T09:00+01:00.")] = None,
    every: Annotated[
        str | None, typer.Option(metavar="CRON", help="A series as a cron expression, such as '0 9 * * 1'.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(metavar="ZONE", help="The time zone, such as Europe/Berlin.")] = None,
    when_busy: Annotated[
        Literal["queue", "steer", "skip"], typer.Option(help="What to do while the chat works.")
    ] = "queue",
    schedule_id: Annotated[
        str | None, typer.Option("--id", help="The id of the schedule; the same id replaces it.")
    ] = None,
    source: ChatSource,
) -> Report:
    """Schedule a message to a chat, once or repeatedly."""
    time = None if at is None else parse_time("--at", at)

    async def scheduled(chats: Chats, chat_id: str) -> ScheduledMessage:
        return await chats.schedule(
            chat_id, message, at=time, every=every, timezone=timezone, when_busy=when_busy, id=schedule_id
        )

    return _report([source.on_chat(chat, scheduled)])


@with_source("actor")
def unschedule(
    chat: ChatArgument,
    schedule_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a schedule, as `schedules` lists it.")],
    *,
    source: ChatSource,
) -> None:
    """Cancel a scheduled message."""
    source.on_chat(chat, lambda chats, chat_id: chats.unschedule(chat_id, schedule_id))


@with_source()
def schedules(chat: ChatArgument, *, source: ChatSource) -> Report:
    """List the scheduled messages of a chat, the next one first."""
    return _report(source.on_chat(chat, lambda chats, chat_id: chats.schedules(chat_id)))


def _report(messages: Sequence[ScheduledMessage]) -> Report:
    table: Table = plain_table("id", "next (UTC)", "every", "by", "says")
    for one in messages:
        every = f"{one.every} {one.timezone}" if one.every else ""
        table.add_row(clean(one.id), moment(one.due), clean(every), clean(one.by), excerpt(one.text, 60))
    return Report(messages, table if messages else "Nothing is scheduled.")
