"""Choosing a store and a chat from what was typed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from turnwise.engine.chat import Chat
from turnwise.engine.engine import Engine
from turnwise.engine.settings import Settings
from turnwise.states.errors import ChatNotFound, SettingsError, TurnwiseError

LAST: Final = "last"
PAGE: Final = 200
FILE_SCHEME: Final = "sqlite:///"


class AmbiguousChat(TurnwiseError):
    """Several chats begin with what was typed. Nothing was written."""

    def __init__(self, prefix: str, chat_ids: list[str]) -> None:
        self.prefix = prefix
        self.chat_ids = chat_ids
        super().__init__(f"{prefix!r} begins the ids of {len(chat_ids)} chats: {', '.join(chat_ids[:5])}; type more")


def reading(store: str) -> Engine:
    """Return an engine that runs nothing, on a store that is there.

    Raises:
        SettingsError: the store's file does not exist; looking must not create it.
    """
    path = store.removeprefix(FILE_SCHEME)
    if path not in (store, "") and not Path(path).is_file():
        raise SettingsError("--store", f"there is no file {path!r}; `turnwise chat` or `turnwise migrate` creates it")
    return Engine(store, model="demo", settings=Settings(run_worker=False))


async def chosen(engine: Engine, name: str) -> Chat:
    """Return the chat that was meant.

    Raises:
        ChatNotFound: there is none.
        AmbiguousChat: there are several.
    """
    if name == LAST:
        newest = (await engine.list_chats(limit=1)).items
        if not newest:
            raise ChatNotFound(name)
        return newest[0]
    found = [chat async for chat in every_chat(engine) if name and chat.id.startswith(name)]
    exact = [chat for chat in found if chat.id == name]
    match exact or found:
        case []:
            raise ChatNotFound(name)
        case [chat]:
            return chat
    raise AmbiguousChat(name, [chat.id for chat in found])


async def every_chat(engine: Engine) -> AsyncIterator[Chat]:
    """Yield all chats, newest first."""
    after: str | None = None
    while True:
        page = await engine.list_chats(limit=PAGE, after=after)
        for chat in page.items:
            yield chat
        if page.next is None:
            return
        after = page.next
