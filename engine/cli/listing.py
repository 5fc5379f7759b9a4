"""`turnwise list`: the chats of a store."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from turnwise.engine.chat import Chat
from turnwise.engine.cli.choosing import reading
from turnwise.engine.cli.look import console, excerpt, plain_table, print_json, state_text
from turnwise.engine.cli.options import DEFAULT_STORE, JsonOption, StoreOption


def list_chats(
    *,
    store: StoreOption = DEFAULT_STORE,
    state: Annotated[str | None, typer.Option(help="Only chats in this state.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List chats, newest first."""
    chats = anyio.run(_chats, store, state, limit)
    if as_json:
        print_json(chats)
        return
    table = plain_table("chat", "state", "turns", "changed (UTC)", "title")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for chat in chats:
        state_shown = state_text(chat.state).append(" archived" if chat.archived else "", style="dim")
        changed = f"{chat.updated_at:%Y-%m-%d %H:%M}"
        table.add_row(chat.id, state_shown, str(chat.turn), changed, excerpt(chat.title or "", 60))
    console.print(table if chats else "There is no such chat.")


async def _chats(store: str, state: str | None, limit: int) -> list[Chat]:
    async with reading(store) as engine:
        return list((await engine.list_chats(state=state, limit=limit)).items)
