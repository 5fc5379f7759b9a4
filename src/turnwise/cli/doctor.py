"""`turnwise doctor` and `turnwise migrate`: find damage in a store, and update its schema."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.padding import Padding
from rich.text import Text

from turnwise.cli.connect import OPERATOR, ChatSource, attached_to_store, chosen_id, every_chat
from turnwise.cli.files import write_file
from turnwise.cli.keys import CheckpointsOption, PublicKeyOption, published_files
from turnwise.cli.options import DEFAULT_STORE, ActorOption, FileFolderOption, JsonOption, StoreOption
from turnwise.cli.style import clean, console, print_json, state_text
from turnwise.engine.admin.diagnose import Diagnosis
from turnwise.engine.blobs.lost import LostFile
from turnwise.persistence.store_url import without_password
from turnwise.states.errors import SettingsError

_INDENT = (0, 0, 0, 2)


def doctor(  # noqa: PLR0913 - the options of a command
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="With --export: the file to write.")] = None,
    *,
    store: StoreOption = DEFAULT_STORE,
    repair: Annotated[
        str | None,
        typer.Option(
            "--repair", metavar="CHAT", help="Repair this chat: keep what can be read, and set its state to `error`."
        ),
    ] = None,
    export: Annotated[
        str | None, typer.Option("--export", metavar="CHAT", help="Write this chat's rows to FILE, as JSON Lines.")
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Also read every file of every chat, and compare it with its digest.")
    ] = False,
    file_folder: FileFolderOption = None,
    checkpoints: CheckpointsOption = None,
    public_key: PublicKeyOption = None,
    actor: ActorOption = OPERATOR,
    as_json: JsonOption = False,
) -> None:
    """Check every chat for data that is unreadable, broken or missing. Exits with 1 if something was found.

    With --checkpoints, also find published chats that are missing or have lost the end of their log.
    """
    for option, value in {"--files": files, "--checkpoints": checkpoints, "--public-key": public_key}.items():
        if value and (repair, export) != (None, None):
            raise SettingsError(option, "is for a look at every chat: leave --repair and --export out")
    if (export is None) != (file is None) or (export is not None and repair is not None):
        raise SettingsError("doctor", "takes either --repair CHAT, or --export CHAT FILE, or neither")
    if repair is not None:
        chat = ChatSource(store, actor=actor).on_chat(repair, lambda chats, chat_id: chats.repair(chat_id))
        if as_json:
            print_json(chat)
        else:
            console.print(
                f"{clean(chat.id)} stands in {chat.state} now; what could not be read is in the table quarantine"
            )
    elif export is not None and file is not None:
        write_file("FILE", Path(file), anyio.run(_rows, store, export))
    else:
        elsewhere = published_files(checkpoints, public_key)
        diagnoses = anyio.run(partial(_diagnoses, store, file_folder, files=files, **elsewhere))
        _print_diagnoses(diagnoses, read=files, as_json=as_json)


def _print_diagnoses(diagnoses: list[Diagnosis], *, read: bool, as_json: bool) -> None:
    if as_json:
        print_json(diagnoses)
    for diagnosis in () if as_json else diagnoses:
        console.print(clean(diagnosis.chat_id or "of no chat"), style="bold red", soft_wrap=True)
        problems = [f"{issue.column}: {issue.problem}" for issue in diagnosis.issues]
        for problem in (*problems, *(_lost_line(lost) for lost in diagnosis.files)):
            console.print(Padding(clean(problem), _INDENT))
        console.print(Padding(diagnosis.advice, _INDENT, style="dim"))
    if diagnoses:
        raise typer.Exit(1)
    if not as_json:
        there = "every file is there, byte for byte" if read else "no file is missing"
        console.print(f"✓ every chat can be read and keeps its promises; {there}", style="green")


def _lost_line(lost: LostFile) -> str:
    part = "" if lost.part is None else f", part {lost.part}"
    description = "" if lost.media_type is None else f"{lost.name or 'without a name'} ({lost.media_type}), "
    return f"{lost.place}{part}: the file {description}{lost.digest} {lost.problem}"


async def _diagnoses(store: str, file_folder: Path | None, **options: Any) -> list[Diagnosis]:
    async with attached_to_store(store, file_folder) as engine:
        return [diagnosis async for diagnosis in engine.diagnose(**options)]


async def _rows(store: str, name: str) -> str:
    async with attached_to_store(store) as engine:
        return await engine.export_rows(await chosen_id(engine, name))


def migrate(
    *, store: StoreOption = DEFAULT_STORE, file_folder: FileFolderOption = None, as_json: JsonOption = False
) -> None:
    """Create a store or update its tables, and print what it contains. A folder for its files is created, too."""
    counts = anyio.run(_count, store, file_folder)
    url = without_password(store)
    if as_json:
        print_json({"store": url, "chats": dict(counts)})
        return
    console.print(Text.assemble(("✓ ", "green"), f"{clean(url)} has the schema of this version"), soft_wrap=True)
    for state, count in counts.most_common():
        console.print(Text.assemble(f"  {count:>6,} ", state_text(state)))
    if not counts:
        console.print("  no chats yet")


async def _count(store: str, file_folder: Path | None) -> Counter[str]:
    async with attached_to_store(store, file_folder, migrates=True) as engine:
        return Counter([chat.state.value async for chat in every_chat(engine)])
