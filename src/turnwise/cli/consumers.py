"""Commands for the inbox, consumers and webhooks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.options import with_source
from turnwise.cli.style import Report, clean, moment, plain_table
from turnwise.persistence.reading import Undelivered
from turnwise.states.errors import SettingsError

NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The name of a consumer, or `webhook:NAME`; by default all."),
]
ChatOption = Annotated[str | None, typer.Option("--chat", metavar="CHAT", help="Only events of this chat.")]


@with_source("actor")
def undelivered(
    name: NameArgument = None,
    *,
    again: Annotated[bool, typer.Option("--again", help="Deliver the events again instead of listing them.")] = False,
    chat: ChatOption = None,
    source: ChatSource,
) -> Report:
    """List the events that a webhook or another consumer did not accept, or deliver them again.

    The process that serves the consumer delivers them, now or when it starts.
    """

    async def wanted(chats: Chats) -> list[str]:
        names = [one.name for one in await chats.consumers()]
        if name is not None and name not in names:
            there = f"it has {', '.join(names)}" if names else "it has none"
            raise SettingsError("NAME", f"there is no consumer {clean(name)!r:.80} in this store; {there}")
        return names if name is None else [name]

    async def found(chats: Chats) -> dict[str, list[Undelivered]]:
        names = await wanted(chats)
        events = {one: await chats.undelivered(one) for one in names}
        return {one: [event for event in waiting if chat in (None, event.chat_id)] for one, waiting in events.items()}

    async def delivered(chats: Chats) -> dict[str, int]:
        names = await wanted(chats)
        return {one: await chats.deliver_again(one, about=chat) for one in names}

    if again:
        counts = source.run(delivered)
        return Report(counts, f"{sum(counts.values())} event(s) will be delivered again")
    events = source.run(found)
    table: Table = plain_table("consumer", "chat", "event", "tried last (UTC)", "error")
    for consumer, waiting in events.items():
        for one in waiting:
            error = "about to be delivered" if one.due else one.error
            table.add_row(clean(consumer), clean(one.chat_id), str(one.seq), moment(one.at), clean(error))
    return Report(events, table if table.row_count else "Everything is delivered.")


@with_source()
def consumers(*, source: ChatSource) -> Report:
    """List webhooks and other consumers of events, with their position and the events they did not accept."""
    found = source.run(lambda chats: chats.consumers())
    table = plain_table("name", "position", "delivering", "undelivered")
    for one in found:
        table.add_row(clean(one.name), str(one.position), "yes" if one.delivering else "no", str(one.undelivered))
    return Report(found, table if found else "There is no consumer.")


@with_source()
def inbox(
    *,
    owner: Annotated[str | None, typer.Option(help="Only chats of this owner.")] = None,
    source: ChatSource,
) -> Report:
    """List the calls that wait for a person, those of subagents included."""
    items = source.run(lambda chats: chats.inbox(owner=owner))
    table = plain_table("chat", "owner", "calls", "since (UTC)")
    for item in items:
        calls = ", ".join(call.name for call in item.calls)
        table.add_row(clean(item.chat_id), clean(item.owner or ""), clean(calls), moment(item.since))
    return Report(items, table if items else "Nothing waits for a person.")
