"""`turnwise erase`: erase content of a chat for good, and print where copies of it are left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast, get_args

import anyio
import typer
from rich.text import Text

from turnwise.cli.chat_argument import OPERATOR, Chats, acted, attached, chosen_id, on_chat
from turnwise.cli.confirm import confirm
from turnwise.cli.connected import place_of
from turnwise.cli.file_folder import FileFolderOption
from turnwise.cli.options import DEFAULT_STORE, ActorOption, ChatArgument, JsonOption, ServerOption, StoreOption
from turnwise.cli.style import clean, console, labelled, print_json
from turnwise.engine.admin.erase import Erasable, Erasure, wanted
from turnwise.states.errors import SettingsError


def erase(  # noqa: PLR0913 - the options of a command
    chat: ChatArgument,
    messages: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="Messages' ids, as `show --json` tells them."),
    ] = None,
    *,
    what: Annotated[
        list[str] | None,
        typer.Option(
            "--what",
            metavar="WORD",
            help=f"What is to go as a whole, of {', '.join(get_args(Erasable))}; may be given several times.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="All of it: the same as --what everything.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")] = False,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    file_folder: FileFolderOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Erase what was said, for good, and tell what is left where. Digests stay: the audit log still verifies."""
    names = messages or []
    whole = cast("list[Erasable]", ["everything"] if everything else what or [])
    if not names and not whole:
        raise SettingsError("MESSAGE", "name messages, or what is to go as a whole: --what title, or --everything")
    wanted(names, whole)
    place = place_of(store, server)
    chat_id = anyio.run(_chosen, place, file_folder, chat)
    if not yes:
        confirm(f"Erase {clean(', '.join([*names, *whole]))} of {clean(chat_id)}, for good?", done="erased")

    async def erased(chats: Chats, chosen: str) -> Erasure:
        return await acted(chats.erase, chosen, messages=names, what=whole, actor=actor)

    erasure = on_chat(place, chat_id, erased, file_folder=file_folder)
    if as_json:
        print_json(erasure)
        return
    console.print(Text.assemble(("✓ ", "green"), f"erased in {clean(erasure.chat.id)}"))
    console.print(labelled(_erased(erasure)))
    console.print(labelled(_leftovers(erasure)))


def _erased(erasure: Erasure) -> Iterator[tuple[str, str]]:
    yield "messages", ", ".join(erasure.messages) or "none"
    if erasure.queued:
        yield "of the queue", ", ".join(erasure.queued)
    if erasure.labels:
        yield "labels", ", ".join(erasure.labels)
    if erasure.quarantined:
        yield "put aside", f"{erasure.quarantined} row(s) of repairs"


def _leftovers(erasure: Erasure) -> Iterator[tuple[str, str]]:
    if erasure.may_quote:
        yield "may quote it", f"{', '.join(erasure.may_quote)}: summaries, to be erased like any message"
    if erasure.forks:
        yield "copied it", f"{', '.join(erasure.forks)}: forks, under the same message ids"
    if not erasure.overwritten:
        yield (
            "files",
            "may hold it still: not overwritten yet, or in a folder that --file-folder has to name",
        )
    for number, text in enumerate(erasure.outside):
        yield "" if number else "elsewhere", text


async def _chosen(place: str, file_folder: Path | None, chat: str) -> str:
    async with attached(place, file_folder) as chats:
        return await chosen_id(chats, chat)
