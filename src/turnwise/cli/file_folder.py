"""The folder that keeps the files of a store, as it was named on the command line."""

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
