"""`turnwise delete`: delete a chat for good, and print what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.text import Text

from turnwise.cli.chat_argument import OPERATOR, acted, attached, chosen_id
from turnwise.cli.confirm import confirm
from turnwise.cli.connected import place_of
from turnwise.cli.file_folder import FileFolderOption
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, ServerOption, StoreOption
from turnwise.cli.style import clean, console, labelled, print_json
from turnwise.engine.admin.erase import OUTSIDE
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.errors import ChatDeleted


def delete(  # noqa: PLR0913 - the options of a command
    chat: ChatArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")] = False,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    file_folder: FileFolderOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Delete a resting chat for good. Its tombstone stays: when it was there, and what its log ended with."""
    place = place_of(store, server)
    chat_id, is_there = anyio.run(_meant, place, file_folder, chat)
    if is_there and not yes:
        confirm(f"Delete {clean(chat_id)}, all of it, for good?", done="deleted")
    tombstone = anyio.run(_deleted, place, file_folder, chat_id, actor)
    if as_json:
        print_json(tombstone)
        return
    console.print(Text.assemble(("✓ ", "green"), f"deleted {clean(chat_id)}"))
    console.print(labelled(_lines_of(tombstone)))


async def _meant(place: str, file_folder: Path | None, chat: str) -> tuple[str, bool]:
    """Return the id of the chat that was meant, and whether it is still there."""
    async with attached(place, file_folder) as chats:
        try:
            return await chosen_id(chats, chat), True
        except ChatDeleted as deleted:
            return deleted.chat_id, False


async def _deleted(place: str, file_folder: Path | None, chat_id: str, actor: str) -> Tombstone:
    async with attached(place, file_folder) as chats:
        return await acted(chats.delete_chat, chat_id, actor=actor)


def _lines_of(tombstone: Tombstone) -> Iterator[tuple[str, str]]:
    yield "deleted at", f"{tombstone.deleted_at:%Y-%m-%d %H:%M:%S}, by {tombstone.actor}"
    yield "its log had", f"{tombstone.records} records; the last has the hash {tombstone.head or 'that was unreadable'}"
    if tombstone.forks:
        yield "copied it", f"{', '.join(tombstone.forks)}: forks, which stay"
    if tombstone.children:
        yield "children", f"{', '.join(tombstone.children)}: chats of their own, which stay"
    if not tombstone.overwritten:
        yield "files", "may hold it still: the database has not overwritten them"
    for number, text in enumerate(OUTSIDE):
        yield "" if number else "elsewhere", text
