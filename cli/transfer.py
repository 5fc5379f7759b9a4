"""`turnwise export` and `turnwise import`: a whole chat as a file that any store takes in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import anyio
import typer

from turnwise.cli.chat_argument import attached, on_chat
from turnwise.cli.file_folder import FileFolderOption
from turnwise.cli.input import InputLines
from turnwise.cli.key import KeyOption, signing_key
from turnwise.cli.operating import OPERATOR, tell
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, StoreOption
from turnwise.cli.output import WholeFile
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.engine import Engine
from turnwise.engine.results import Chat


def export(
    chat: ChatArgument,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; else it is printed.")
    ] = None,
    key: KeyOption = None,
    store: StoreOption = DEFAULT_STORE,
    file_folder: FileFolderOption = None,
) -> None:
    """Write a whole chat as JSON Lines, which `import` takes in, on a store of any kind."""
    secret = signing_key(key)

    def to(write: Callable[[str], object]) -> int:
        async def written(engine: Engine, chat_id: str) -> int:
            count = 0
            async with aclosing(engine.export_chat(chat_id, key=secret)) as lines:
                async for line in lines:
                    write(line)
                    count += 1
            return count

        return on_chat(store, chat, written, file_folder=file_folder)

    if output is None:
        to(sys.stdout.write)
        return
    with WholeFile("--output", output) as file:
        count = to(file.write)
    signed = "" if secret is None else ", signed"
    console.print(f"wrote {count} lines to {clean(str(output))}{signed}", soft_wrap=True, markup=False)


def import_chat(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An exported chat; - reads standard input.")],
    *,
    key: KeyOption = None,
    store: StoreOption = DEFAULT_STORE,
    file_folder: FileFolderOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Take in a chat that `export` wrote, once all of it was checked; it keeps its id."""
    secret = signing_key(key)
    given = InputLines("FILE", file)
    with given.opened() as source:

        async def taken_in() -> Chat:
            async with attached(store, file_folder) as engine, aclosing(given.read(source)) as lines:
                return await engine.import_chat(lines, key=secret, actor=actor)

        chat = anyio.run(taken_in)
    if as_json:
        print_json(chat)
    else:
        tell(store, chat, f"chat {chat.id} is imported")
