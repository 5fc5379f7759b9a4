"""`turnwise export` and `turnwise import`: a whole chat as a file that any store takes in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.files import InputLines, WholeFile
from turnwise.cli.keys import VARIABLE, KeyOption, signing_key
from turnwise.cli.operating import report
from turnwise.cli.options import ChatArgument, JsonOption, with_source
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.config.results import Chat
from turnwise.states.errors import SettingsError


@with_source("file_folder")
def export(
    chat: ChatArgument,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of printing.")
    ] = None,
    key: KeyOption = None,
    source: ChatSource,
) -> None:
    """Export a whole chat as JSON Lines, for `import` into any store."""
    signing = _signing(source, key)

    def to(write: Callable[[str], object]) -> int:
        async def written(chats: Chats, chat_id: str) -> int:
            count = 0
            async with aclosing(chats.export_chat(chat_id, **signing)) as lines:
                async for line in lines:
                    write(line)
                    count += 1
            return count

        return source.on_chat(chat, written)

    if output is None:
        to(sys.stdout.write)
        return
    with WholeFile("--output", output) as file:
        count = to(file.write)
    signed = ", signed" if signing else ""
    console.print(f"wrote {count} lines to {clean(str(output))}{signed}", soft_wrap=True)


@with_source("file_folder", "actor")
def import_chat(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An exported chat; - reads standard input.")],
    *,
    key: KeyOption = None,
    source: ChatSource,
    as_json: JsonOption = False,
) -> None:
    """Check an exported chat and import it; it keeps its id."""
    signing = _signing(source, key)
    input_lines = InputLines("FILE", file)
    with input_lines.opened() as stream:

        async def imported(chats: Chats) -> Chat:
            async with aclosing(input_lines.read(stream)) as lines:
                return await chats.import_chat(lines, **signing)

        chat = source.run(imported)
    if as_json:
        print_json(chat)
    else:
        report(source, chat, f"chat {chat.id} is imported")


def _signing(source: ChatSource, key: Path | None) -> dict[str, Any]:
    """Return the argument `key` of the chats of a store, if there is a key; a service takes none."""
    secret = signing_key(key)
    if secret is not None and source.is_service:
        right = "leave it out; `audit --export FILE --key` signs a log here"
        raise SettingsError("--key" if key is not None else VARIABLE, f"a service takes no keys: {right}")
    return {} if secret is None else {"key": secret}
