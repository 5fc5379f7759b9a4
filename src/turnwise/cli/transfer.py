"""`turnwise export` and `turnwise import`: a whole chat as a file for any store."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.files import WholeFile, input_lines
from turnwise.cli.keys import VARIABLE, KeyOption, signing_key
from turnwise.cli.operating import report
from turnwise.cli.options import with_source
from turnwise.cli.style import Report, clean, console
from turnwise.engine.admin.owners import FORMAT
from turnwise.engine.config.results import Chat, OwnerImport
from turnwise.states.errors import SettingsError


@with_source("file_folder")
def export(
    chat: Annotated[
        str | None, typer.Argument(metavar="[CHAT]", help="A chat: its id, the beginning of it, or 'last'.")
    ] = None,
    *,
    owner: Annotated[str | None, typer.Option(help="Everything of this owner instead.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of printing.")
    ] = None,
    key: KeyOption = None,
    source: ChatSource,
) -> None:
    """Export a whole chat, or everything of an owner, as JSON Lines, for `import` into any store."""
    if (owner is None) == (chat is None):
        raise SettingsError("CHAT", "pass either a chat or --owner")
    signing = _signing(source, key)
    if owner is not None and signing:
        raise SettingsError("--key", "signs a chat; leave it out with --owner")

    def to(write: Callable[[str], object]) -> int:
        async def written(lines: AsyncGenerator[str, None]) -> int:
            count = 0
            async with aclosing(lines) as each:
                async for line in each:
                    write(line)
                    count += 1
            return count

        if owner is not None:
            return source.run(lambda chats: written(chats.export_owner(owner)))
        return source.on_chat(str(chat), lambda chats, chat_id: written(chats.export_chat(chat_id, **signing)))

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
) -> Report:
    """Check an exported chat and import it; it keeps its id."""
    signing = _signing(source, key)
    with input_lines("FILE", file) as lines:
        first = next(lines, "")
        again = chain([first], lines)

        async def imported(chats: Chats) -> Chat | OwnerImport:
            if f'"format":"{FORMAT}"' in first:
                return await chats.import_owner(again)
            return await chats.import_chat(again, **signing)

        chat = source.run(imported)
    if not isinstance(chat, OwnerImport):
        return Report(chat, partial(report, source, chat, f"chat {chat.id} is imported"))
    present = f", {len(chat.present)} were there already" if chat.present else ""
    return Report(chat, f"imported {len(chat.imported)} chat(s) of {clean(chat.owner)}{present}")


def _signing(source: ChatSource, key: Path | None) -> dict[str, Any]:
    """Return the argument `key` of the chats of a store, if there is a key; a service takes none."""
    secret = signing_key(key)
    if secret is not None and source.is_service:
        right = "leave it out; `audit --export FILE --key` signs a log here"
        raise SettingsError("--key" if key is not None else VARIABLE, f"a service takes no keys: {right}")
    return {} if secret is None else {"key": secret}
