"""`turnwise doctor`: what is wrong in a store, and what can be done about it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from turnwise.cli.chat_argument import attached, on_chat
from turnwise.cli.operating import OPERATOR
from turnwise.cli.options import DEFAULT_STORE, JsonOption, StoreOption
from turnwise.cli.output import write_file
from turnwise.cli.style import clean, console, print_json
from turnwise.engine.diagnose import Diagnosis
from turnwise.engine.engine import Engine
from turnwise.states.errors import SettingsError


def doctor(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="With --export: where to.")] = None,
    *,
    store: StoreOption = DEFAULT_STORE,
    repair: Annotated[
        str | None,
        typer.Option("--repair", metavar="CHAT", help="Bring this chat to `error` with all of it that can be read."),
    ] = None,
    export: Annotated[
        str | None, typer.Option("--export", metavar="CHAT", help="Write this chat's rows to FILE, as JSON Lines.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look at every chat: what cannot be read, which promises are broken. Exit code 1 if something was found."""
    if (export is None) != (file is None) or (export is not None and repair is not None):
        raise SettingsError("doctor", "takes either --repair CHAT, or --export CHAT FILE, or neither")
    if repair is not None:
        chat = on_chat(store, repair, partial(Engine.repair, actor=OPERATOR))
        if as_json:
            print_json(chat)
        else:
            console.print(f"{chat.id} stands in {chat.state} now; what could not be read is in the table quarantine")
    elif export is not None and file is not None:
        write_file("FILE", Path(file), on_chat(store, export, Engine.export_rows))
    else:
        _tell_found(anyio.run(_found, store), as_json=as_json)


def _tell_found(found: list[Diagnosis], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    for diagnosis in () if as_json else found:
        console.print(clean(diagnosis.chat_id or "rows of no chat"), style="bold red", soft_wrap=True)
        for flaw in diagnosis.flaws:
            console.print(f"  {clean(flaw.column)}: {clean(flaw.problem)}", soft_wrap=True, markup=False)
        console.print(f"  {diagnosis.advice}", style="dim", soft_wrap=True, markup=False)
    if found:
        raise typer.Exit(1)
    if not as_json:
        console.print("✓ every chat can be read and keeps its promises", style="green")


async def _found(store: str) -> list[Diagnosis]:
    async with attached(store) as engine:
        return [diagnosis async for diagnosis in engine.diagnose()]
