"""The source of the chats, a store or a service, and the lookup of a chat."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

import anyio
import msgspec

from turnwise.engine.agents.agent import Agent
from turnwise.engine.chats.chats import LocalChats
from turnwise.engine.config.results import Chat
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.persistence.blobs.folder import FolderFiles
from turnwise.persistence.blobs.protocol import FilesElsewhere
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.store_url import without_password
from turnwise.states.errors import ChatNotFound, InvalidArgument, SettingsError, StoreError, TurnwiseError

if TYPE_CHECKING:
    from turnwise.client import Client
    from turnwise.client.remote_chats import RemoteChats

SCHEMES: Final = ("http://", "https://")
TOKEN: Final = "TURNWISE_TOKEN"  # noqa: S105 - its name
"""The variable that holds the token. It is no option, because every user of a machine sees the options of programs."""


Chats: TypeAlias = "LocalChats | RemoteChats"
"""The chats of an engine that runs none of them, or of a service."""

OPERATOR: Final = "operator"
"""The default actor."""
LAST: Final = "last"
MOST_NAMED: Final = 5
"""Chats that an error names where several ids begin alike."""
FILE_SCHEME: Final = "sqlite:///"
FOLDER: Final = "--file-folder"
_NOTHING: Final = "; nothing was written"
_RIGHT: Final = "`turnwise migrate --file-folder PATH` makes one for a store without files"

Result = TypeVar("Result")


class AmbiguousChat(TurnwiseError):
    """The ids of several chats begin with what was typed. Nothing was written."""

    def __init__(self, prefix: str, chat_ids: list[str]) -> None:
        self.prefix = prefix
        self.chat_ids = chat_ids
        names = ", ".join(chat_ids[:MOST_NAMED]) + (", …" if len(chat_ids) > MOST_NAMED else "")
        count = f"more than {MOST_NAMED}" if len(chat_ids) > MOST_NAMED else str(len(chat_ids))
        super().__init__(f"{prefix!r} begins the ids of {count} chats: {names}; type more")


class ChatSource(msgspec.Struct, frozen=True):
    """The store or the service whose chats a command is for, and the actor of the command."""

    url: str
    file_folder: Path | None = None
    """The folder that keeps the store's files, if its database does not."""
    actor: str = OPERATOR

    @classmethod
    def named(
        cls, store: str, server: str | None = None, file_folder: Path | None = None, actor: str = OPERATOR
    ) -> Self:
        """Return the service, if one is named, else the store."""
        if server is not None and not server.startswith(SCHEMES):
            raise SettingsError(
                "--server", f"must be like https://chats.example.com; it was {without_password(server)!r:.100}"
            )
        return cls(server or store, file_folder, actor)

    @property
    def is_service(self) -> bool:
        """Whether the chats are those of a service."""
        return self.url.startswith(SCHEMES)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Chats]:
        """Open the client of a service, or an engine that runs no chat on an existing store.

        Commands act as the principal of a service's token, unless another actor is named.
        """
        if not self.is_service:
            async with attached_to_store(self.url, self.file_folder) as engine:
                yield engine.acting(self.actor)
            return
        if self.file_folder is not None:
            raise SettingsError(FOLDER, "belongs to a store; a service knows where its files are")
        async with connected(self.url) as client:
            yield client if self.actor == OPERATOR else client.acting(self.actor)

    def run(self, command: Callable[[Chats], Awaitable[Result]]) -> Result:
        """Return the result of a command for the chats, see `open`."""

        async def run() -> Result:
            async with self.open() as chats:
                return await command(chats)

        return anyio.run(run)

    def on_chat(self, name: str, command: Callable[[Chats, str], Awaitable[Result]]) -> Result:
        """Return the result of a command for one chat, see `open` and `chosen_id`."""

        async def on_chosen(chats: Chats) -> Result:
            return await command(chats, await chosen_id(chats, name))

        return self.run(on_chosen)


def token_of_service() -> str:
    """Return the token that the environment holds."""
    token = os.environ.get(TOKEN)
    if not token:
        raise SettingsError("--server", f"needs a token of the service in the variable {TOKEN}")
    return token


def address_of(server: str) -> str:
    """Return the address of a service, to which paths may be added."""
    from turnwise.client.client import sound_url  # noqa: PLC0415 - an extra's

    try:
        return sound_url(server)
    except InvalidArgument as error:
        raise SettingsError("--server", error.problem) from None


@asynccontextmanager
async def connected(server: str) -> AsyncIterator[Client]:
    """Open a client of a service, which gives up soon: a person waits."""
    from turnwise.client import Client, ClientSettings  # noqa: PLC0415 - an extra's

    address, token = address_of(server), token_of_service()
    try:
        client = Client(address, token=token, settings=ClientSettings(retry_timeout=5))
    except InvalidArgument as error:
        raise SettingsError(TOKEN, error.problem) from None
    async with client:
        yield client


@asynccontextmanager
async def attached_to_store(
    store: str, file_folder: Path | None = None, *, migrates: bool = False
) -> AsyncIterator[Engine]:
    """Open an engine that runs no chat, on an existing store; with `migrates`, create or update the store."""
    chats = store if migrates else existing_store(store)
    files = await files_in(file_folder, create=migrates)
    try:
        placeholder = Agent("the command line", "demo")  # an engine needs an agent; no chat names this one
        async with Engine(chats, files=files, agents=[placeholder], settings=Settings(run_worker=False)) as engine:
            if files is not None:
                await engine.check_files()
            yield engine
    except FilesElsewhere as error:
        problem = f"the files of this store are kept in {error.known!r}, and {error.given!r} was to be used"
        right = "leave the option out" if error.known == "database" else "name the folder that holds them"
        raise SettingsError(FOLDER, f"{problem}; {right}") from error


def existing_store(url: str) -> ChatStore:
    """Return a store that opening neither creates nor migrates.

    The command may be newer than the store's workers: these could not start again after a migration.
    """
    if url == "sqlite://":
        raise SettingsError("--store", "a database in memory ends with its process; name a file")
    check_is_there(url, "`turnwise chat` or `turnwise migrate` creates it")
    return store_from_url(url, durability=Settings().durability, now=None, migrates=False)


def check_is_there(store: str, right: str) -> None:
    """Raise a `SettingsError` if a store's file is missing: its name may be misspelt."""
    path = store.removeprefix(FILE_SCHEME)
    if path not in (store, "") and not Path(path).is_file():
        if Path(path).is_dir():
            raise SettingsError("--store", f"{path!r} is a folder; name the file of a store")
        raise SettingsError("--store", f"there is no file {path!r}; {right}")


async def files_in(folder: Path | None, *, create: bool = False) -> FolderFiles | None:
    """Return the file store in a folder; `None` for the database of the chats."""
    if folder is None:
        return None
    try:
        files = FolderFiles(folder, create=create)
        await files.open()
    except StoreError as error:
        raise SettingsError(FOLDER, f"{error.problem.removesuffix(_NOTHING)}; {_RIGHT}") from error
    return files


def files_to_run_with(folder: Path | None, *, create: bool) -> FolderFiles | None:
    """Call `files_in` outside of an event loop, for an engine that is opened later."""
    return None if folder is None else anyio.run(partial(files_in, folder, create=create))


async def chosen_id(chats: Chats, name: str) -> str:
    """Return the id of a chat, by itself, its beginning or `last`. The chat need not be readable."""
    # First: an index finds an id, but some databases scan all chats for its beginning.
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
    except TurnwiseError as error:  # any other error: the chat exists, and cannot be read
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
