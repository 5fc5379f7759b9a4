"""The arguments and options that several commands share, and the folder that keeps the files of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from turnwise.persistence.blobs.folder import FolderFiles
from turnwise.persistence.blobs.protocol import FilesElsewhere
from turnwise.states.errors import SettingsError, StoreError

DEFAULT_STORE: Final = "sqlite:///turnwise.db"


def _in_one_place(context: typer.Context, value: str | None) -> str | None:
    """Check that a store and a service were not both typed: the chats are in one of them, and it might not be meant."""
    sources = [context.get_parameter_source(name) for name in ("store", "server")]
    if all(source is not None and source.name == "COMMANDLINE" for source in sources):
        raise SettingsError("--store, --server", "each names the place where the chats are: leave one of them out")
    return value


StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="TURNWISE_STORE",
        metavar="URL",
        callback=_in_one_place,
        help="Where the chats are kept.",
    ),
]
AgentsStoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="TURNWISE_STORE",
        metavar="URL",
        callback=_in_one_place,
        help="Where the chats of agents are kept; an engine has its own store.",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        callback=_in_one_place,
        help="The service that has the chats, instead of a store; TURNWISE_TOKEN is the token.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ChatArgument = Annotated[str, typer.Argument(metavar="CHAT", help="A chat: its id, the beginning of it, or 'last'.")]
ActorOption = Annotated[
    str, typer.Option("--actor", envvar="TURNWISE_ACTOR", metavar="NAME", help="Who acts, as the audit log names them.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model that answers; the demo model by default.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 for any that is free.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, help="Chats of agents to run at once; an engine has its own setting.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Do not log every transition.")]


_OPTION: Final = "--file-folder"
_NOTHING: Final = "; nothing was written"
_RIGHT: Final = "`turnwise migrate --file-folder PATH` makes one for a store without files"
FileFolderOption = Annotated[
    Path | None,
    typer.Option(
        _OPTION,
        envvar="TURNWISE_FILE_FOLDER",
        metavar="PATH",
        help="The folder that keeps the store's files, if its database does not.",
    ),
]


async def files_in(folder: Path | None, *, create: bool = False) -> FolderFiles | None:
    """Return the file store in a folder that is there; `None` for the database of the chats.

    Raises:
        SettingsError: the folder is not there and may not be created, or holds no files of a store.
    """
    if folder is None:
        return None
    try:
        files = FolderFiles(folder, create=create)
        await files.open()
    except StoreError as error:
        raise SettingsError(_OPTION, f"{error.problem.removesuffix(_NOTHING)}; {_RIGHT}") from error
    return files


def files_to_run_with(folder: Path | None, *, create: bool) -> FolderFiles | None:
    """Return the same outside of an event loop, for an engine that is opened later."""
    return None if folder is None else anyio.run(partial(files_in, folder, create=create))


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Name the right folder's option in the error, if files are kept elsewhere.

    Raises:
        SettingsError: they are.
    """
    try:
        yield
    except FilesElsewhere as error:
        problem = f"the files of this store are kept in {error.known!r}, and {error.given!r} was to be used"
        right = "leave the option out" if error.known == "database" else "name the folder that holds them"
        raise SettingsError(_OPTION, f"{problem}; {right}") from error
