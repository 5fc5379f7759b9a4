"""`turnwise export` and `turnwise import`: a whole chat as a file that any store takes in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from turnwise.cli.connect import OPERATOR, SCHEMES, Chats, acting, attached, on_chat, place_of
from turnwise.cli.files import InputLines, WholeFile
from turnwise.cli.keys import VARIABLE, KeyOption, signing_key
from turnwise.cli.operating import report
from turnwise.cli.options import (
    DEFAULT_STORE,
    ActorOption,
    ChatArgument,
    FileFolderOption,
    JsonOption,
    ServerOption,
    StoreOption,
)
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.config.results import Chat
from turnwise.states.errors import SettingsError


def export(
    chat: ChatArgument,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; else it is printed.")
    ] = None,
    key: KeyOption = None,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    file_folder: FileFolderOption = None,
) -> None:
    """Write a whole chat as JSON Lines, which `import` takes in, on a store of any kind."""
    secret, place = signing_key(key), place_of(store, server)
    _check_key(place, secret, "--key" if key is not None else VARIABLE)

    def to(write: Callable[[str], object]) -> int:
        async def written(chats: Chats, chat_id: str) -> int:
            count = 0
            signing = {} if secret is None else {"key": secret}
            async with aclosing(chats.export_chat(chat_id, **signing)) as lines:
                async for line in lines:
                    write(line)
                    count += 1
            return count

        return on_chat(place, chat, written, file_folder=file_folder)

    if output is None:
        to(sys.stdout.write)
        return
    with WholeFile("--output", output) as file:
        count = to(file.write)
    signed = "" if secret is None else ", signed"
    console.print(f"wrote {count} lines to {clean(str(output))}{signed}", soft_wrap=True)


def import_chat(  # noqa: PLR0913 - the options of a command
    file: Annotated[str, typer.Argument(metavar="FILE", help="An exported chat; - reads standard input.")],
    *,
    key: KeyOption = None,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    file_folder: FileFolderOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Take in a chat that `export` wrote, once all of it was checked; it keeps its id."""
    secret, place = signing_key(key), place_of(store, server)
    _check_key(place, secret, "--key" if key is not None else VARIABLE)
    input_lines = InputLines("FILE", file)
    with input_lines.opened() as source:

        async def taken_in() -> Chat:
            async with attached(place, file_folder) as chats, aclosing(input_lines.read(source)) as lines:
                signed: dict[str, Any] = {} if secret is None else {"key": secret}
                return await acting(chats, actor).import_chat(lines, **signed)

        chat = anyio.run(taken_in)
    if as_json:
        print_json(chat)
    else:
        report(place, chat, f"chat {chat.id} is imported")


def _check_key(place: str, secret: bytes | None, source: str) -> None:
    if secret is not None and place.startswith(SCHEMES):
        right = "leave it out; `audit --export FILE --key` signs a log here"
        raise SettingsError(source, f"a service takes no keys: {right}")
