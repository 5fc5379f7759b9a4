"""Choosing a store and a chat from what was typed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import anyio

from turnwise.cli.file_folder import files_in, naming_the_option
from turnwise.engine.engine import Engine
from turnwise.engine.results import Chat
from turnwise.engine.settings import Settings
from turnwise.states.errors import ChatNotFound, SettingsError, TurnwiseError

LAST: Final = "last"
SHOWN: Final = 5
"""Chats that are named where several begin alike."""
FILE_SCHEME: Final = "sqlite:///"

Result = TypeVar("Result")


class AmbiguousChat(TurnwiseError):
    """Several chats begin with what was typed. Nothing was written."""

    def __init__(self, prefix: str, chat_ids: list[str]) -> None:
        self.prefix = prefix
        self.chat_ids = chat_ids
        shown = ", ".join(chat_ids[:SHOWN]) + (", …" if len(chat_ids) > SHOWN else "")
        count = f"more than {SHOWN}" if len(chat_ids) > SHOWN else str(len(chat_ids))
        super().__init__(f"{prefix!r} begins the ids of {count} chats: {shown}; type more")


@asynccontextmanager
async def attached(store: str, file_folder: Path | None = None) -> AsyncIterator[Engine]:
    """Open an engine that runs no chat, on a store that is there and, if one is named, the folder of its files.

    Raises:
        SettingsError: the store's file does not exist, and reading must not create it; or its files are kept elsewhere.
    """
    path = store.removeprefix(FILE_SCHEME)
    if path not in (store, "") and not await anyio.Path(path).is_file():
        raise SettingsError("--store", f"there is no file {path!r}; `turnwise chat` or `turnwise migrate` creates it")
    files = await files_in(file_folder)
    with naming_the_option():
        async with Engine(store, files=files, model="demo", settings=Settings(run_worker=False)) as engine:
            if files is not None:
                await engine.check_files()
            yield engine


def on_chat(
    store: str,
    name: str,
    command: Callable[[Engine, str], Awaitable[Result]],
    *,
    file_folder: Path | None = None,
) -> Result:
    """Return what a command gives on the store and the chat that were meant, see `attached` and `chosen_id`."""

    async def given() -> Result:
        async with attached(store, file_folder) as engine:
            return await command(engine, await chosen_id(engine, name))

    return anyio.run(given)


async def chosen_id(engine: Engine, name: str) -> str:
    """Return the id of the chat that was meant. Only ids are read, so it may be a chat that cannot be read.

    Raises:
        ChatNotFound: there is none.
        ChatDeleted: there was one of exactly that id.
        AmbiguousChat: there are several.
    """
    wanted = "" if name == LAST else name
    found = await engine.chat_ids(wanted, limit=SHOWN + 1) if name else []
    if not found:
        await engine.get_chat(name)  # which says if it was deleted
        raise ChatNotFound(name)
    if len(found) == 1 or name == LAST:
        return found[0]
    if name in found or await _is_there(engine, name):
        return name
    raise AmbiguousChat(name, found)


async def _is_there(engine: Engine, chat_id: str) -> bool:
    try:
        await engine.get_chat(chat_id)
    except TurnwiseError as error:  # any other error says that it is there, and cannot be read
        return not isinstance(error, ChatNotFound)
    return True


async def every_chat(engine: Engine) -> AsyncIterator[Chat]:
    """Yield all chats, newest first."""
    after: str | None = None
    while True:
        page = await engine.list_chats(after=after)
        for chat in page.items:
            yield chat
        if page.next is None:
            return
        after = page.next
