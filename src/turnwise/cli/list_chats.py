"""`turnwise list`: the chats of a store."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer
from rich.table import Table

from turnwise.cli.chat_argument import attached
from turnwise.cli.connected import place_of
from turnwise.cli.options import DEFAULT_STORE, JsonOption, ServerOption, StoreOption
from turnwise.cli.style import clean, console, excerpt, is_narrow, plain_table, print_json, state_text
from turnwise.engine.config.results import Chat
from turnwise.states.names import Answerer


def list_chats(
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    state: Annotated[str | None, typer.Option(help="Only chats in this state.")] = None,
    awaiting: Annotated[
        Answerer | None, typer.Option(help="Only chats that wait for the client's answers, or for subagents.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List chats, newest first."""
    chats = anyio.run(_chats, place_of(store, server), state, awaiting, limit)
    if as_json:
        print_json(chats)
        return
    console.print(_table(chats) if chats else "There is no such chat.")


def _table(chats: list[Chat]) -> Table:
    """Return the chats as a table. On a narrow screen ids are cut - their beginning names a chat - but no state is."""
    narrow = is_narrow()
    table = plain_table("chat", "state") if narrow else plain_table("chat", "state", "turns", "changed (UTC)", "title")
    for column in table.columns[:4]:
        column.no_wrap = True
    table.columns[0].overflow = "ellipsis"
    standing = [
        (chat, state_text(chat.state).append(" archived" if chat.archived else "", style="dim")) for chat in chats
    ]
    table.columns[1].width = max(state.cell_len for _, state in standing)
    if narrow:
        table.columns[0].max_width = max(console.width - table.columns[1].width - 2, 1)
    for chat, state in standing:
        details = (str(chat.turn), f"{chat.updated_at:%Y-%m-%d %H:%M}", excerpt(chat.title or "", 60))
        table.add_row(clean(chat.id), state, *(() if narrow else details))
    return table


async def _chats(place: str, state: str | None, awaiting: Answerer | None, limit: int) -> list[Chat]:
    async with attached(place) as chats:
        return list((await chats.list_chats(state=state, awaiting=awaiting, limit=limit)).items)
