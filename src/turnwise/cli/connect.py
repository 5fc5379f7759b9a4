"""Choosing a store, or a service, and a chat from what was typed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import anyio

from turnwise.cli.options import files_in, naming_the_option
from turnwise.engine.chats.local import LocalChats
from turnwise.engine.config.results import Chat
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.store_url import without_password
from turnwise.states.errors import ChatNotFound, InvalidArgument, SettingsError, TurnwiseError

if TYPE_CHECKING:
    from turnwise.client import Client
    from turnwise.client.remote_chats import RemoteChats

SCHEMES: Final = ("http://", "https://")
"""How the URL of a service begins; that of no store does."""
TOKEN: Final = "TURNWISE_TOKEN"  # noqa: S105 - its name
"""The variable that holds the token. It is no option, because every user of a machine sees the options of programs."""


def place_of(store: str, server: str | None) -> str:
    """Return where the chats are: the service, if one is named, else the store.

    Raises:
        SettingsError: the service is named by something that is no URL.
    """
    if server is None:
        return store
    if not server.startswith(SCHEMES):
        raise SettingsError(
            "--server", f"must be like https://chats.example.com; it was {without_password(server)!r:.100}"
        )
    return server


def token_of_service() -> str:
    """Return the token that the environment holds.

    Raises:
        SettingsError: it holds none.
    """
    token = os.environ.get(TOKEN)
    if not token:
        raise SettingsError("--server", f"needs a token of the service in the variable {TOKEN}")
    return token


def address_of(server: str) -> str:
    """Return the address of a service, to which paths may be added.

    Raises:
        SettingsError: the extra `client` is not installed, or the URL is none of a service.
    """
    from turnwise.client.client import sound_url  # noqa: PLC0415 - an extra's

    try:
        return sound_url(server)
    except InvalidArgument as error:
        raise SettingsError("--server", error.problem) from None


@asynccontextmanager
async def connected(server: str) -> AsyncIterator[Client]:
    """Open a client of a service. It waits only a moment for a service that does not answer: a person waits.

    Raises:
        SettingsError: the extra `client` is not installed, there is no token, or the URL is none.
    """
    from turnwise.client import Client, ClientSettings  # noqa: PLC0415 - an extra's

    address, token = address_of(server), token_of_service()
    try:
        client = Client(address, token=token, settings=ClientSettings(retry_timeout=5))
    except InvalidArgument as error:
        raise SettingsError(TOKEN, error.problem) from None
    async with client:
        yield client


Chats: TypeAlias = "Engine | Client"
"""What a command is given on: an engine that runs no chat, or the client of a service."""

OPERATOR: Final = "operator"
"""Who acts, unless --actor names another."""
LAST: Final = "last"
MOST_NAMED: Final = 5
"""Chats that are named where several begin alike."""
FILE_SCHEME: Final = "sqlite:///"

Result = TypeVar("Result")


class AmbiguousChat(TurnwiseError):
    """Several chats begin with what was typed. Nothing was written."""

    def __init__(self, prefix: str, chat_ids: list[str]) -> None:
        self.prefix = prefix
        self.chat_ids = chat_ids
        names = ", ".join(chat_ids[:MOST_NAMED]) + (", …" if len(chat_ids) > MOST_NAMED else "")
        count = f"more than {MOST_NAMED}" if len(chat_ids) > MOST_NAMED else str(len(chat_ids))
        super().__init__(f"{prefix!r} begins the ids of {count} chats: {names}; type more")


@asynccontextmanager
async def attached(place: str, file_folder: Path | None = None) -> AsyncIterator[Chats]:
    """Open a place: the client of a service, or an engine that runs no chat.

    Args:
        place: the URL of a service, or of a store that is there.
        file_folder: what keeps the files of the store, if its database does not.

    Raises:
        SettingsError: the store's file does not exist, see `existing_store`; or its files are kept elsewhere; or a
            service needs something that is missing, or takes something that is not its own.
        StoreError: there is no store of this version there.
    """
    if place.startswith(SCHEMES):
        if file_folder is not None:
            raise SettingsError("--file-folder", "belongs to a store; a service knows where its files are")
        async with connected(place) as client:
            yield client
        return
    async with attached_to_store(place, file_folder) as engine:
        yield engine


@asynccontextmanager
async def attached_to_store(store: str, file_folder: Path | None = None) -> AsyncIterator[Engine]:
    """Open an engine that runs no chat, on a store that is there, see `attached`."""
    there = existing_store(store)
    files = await files_in(file_folder)
    with naming_the_option():
        async with Engine(there, files=files, model="demo", settings=Settings(run_worker=False)) as engine:
            if files is not None:
                await engine.check_files()
            yield engine


def existing_store(url: str) -> ChatStore:
    """Return a store that is neither made nor brought up to date by opening it.

    A command that looks at a store, or changes one chat, may be of another version than the store's workers: they could
    not start again if it had brought the store up to its own.

    Raises:
        SettingsError: the store's file does not exist.
    """
    path = url.removeprefix(FILE_SCHEME)
    if path not in (url, "") and not Path(path).is_file():
        raise SettingsError("--store", f"there is no file {path!r}; `turnwise chat` or `turnwise migrate` creates it")
    return store_from_url(url, durability=Settings().durability, now=None, migrates=False)


def on_chat(
    place: str,
    name: str,
    command: Callable[[Chats, str], Awaitable[Result]],
    *,
    file_folder: Path | None = None,
) -> Result:
    """Return what a command gives on the place and the chat that were meant, see `attached` and `chosen_id`."""

    async def run() -> Result:
        async with attached(place, file_folder) as chats:
            return await command(chats, await chosen_id(chats, name))

    return anyio.run(run)


def acting(chats: Chats, actor: str) -> LocalChats | RemoteChats:
    """Return the chats on behalf of an actor. A service takes that of the token, unless another one is named."""
    if isinstance(chats, Engine):
        return chats.acting(actor)
    return chats if actor == OPERATOR else chats.acting(actor)


async def chosen_id(chats: Chats, name: str) -> str:
    """Return the id of the chat that was meant. Only ids are read, so it may be a chat that cannot be read.

    Raises:
        ChatNotFound: there is none.
        ChatDeleted: there was one of exactly that id.
        AmbiguousChat: there are several.
    """
    # First: an id is found by an index, and what begins with it, in some databases, only among all chats.
    if name not in ("", LAST) and await _is_there(chats, name):
        return name
    wanted = "" if name == LAST else name
    ids = await chats.chat_ids(wanted, limit=MOST_NAMED + 1) if name else []
    if not ids:
        await chats.get_chat(name)  # which says if it was deleted
        raise ChatNotFound(name)
    if len(ids) > 1 and name != LAST:
        raise AmbiguousChat(name, ids)
    return ids[0]


async def _is_there(chats: Chats, chat_id: str) -> bool:
    try:
        await chats.get_chat(chat_id)
    except TurnwiseError as error:  # any other error says that it is there, and cannot be read
        return not isinstance(error, ChatNotFound)
    return True


async def every_chat(chats: Chats) -> AsyncIterator[Chat]:
    """Yield all chats, newest first."""
    after: str | None = None
    while True:
        page = await chats.list_chats(after=after)
        for chat in page.items:
            yield chat
        if page.next is None:
            return
        after = page.next
