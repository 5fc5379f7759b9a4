"""`turnwise audit`: every transition of a chat."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from turnwise.cli.chat_argument import Chats, on_chat
from turnwise.cli.connected import place_of
from turnwise.cli.key import KeyOption, SigningKeyOption, signer_of, signing_key
from turnwise.cli.options import DEFAULT_STORE, ChatArgument, JsonOption, ServerOption, StoreOption
from turnwise.cli.output import write_file
from turnwise.cli.style import clean, console, is_narrow, moment, plain_table, print_json, state_text
from turnwise.persistence.audit.record import AuditRecord, object_from
from turnwise.states.errors import SettingsError

_COLUMNS: Final = ("#", "time (UTC)", "trigger", "state", "step", "by")


def audit(  # noqa: PLR0913 - the options of a command
    chat: ChatArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the log as JSON Lines; - prints it."),
    ] = None,
    key: KeyOption = None,
    sign_with: SigningKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the timeline of a chat: one line for every transition."""
    for option, file in {"--key": key, "--signing-key": sign_with}.items():
        if export is None and file is not None:
            raise SettingsError(option, "signs a log that is exported: say where to with --export, or leave it out")
    if str(export) == "-" and as_json:
        raise SettingsError("--json", "would be printed behind the log: leave it out, or name a file with --export")
    secret, signer = signing_key(key), signer_of(sign_with)

    async def log(chats: Chats, chat_id: str) -> tuple[list[AuditRecord], str]:
        return await chats.audit(chat_id), await chats.export_audit(chat_id, key=secret, signer=signer)

    records, exported = on_chat(place_of(store, server), chat, log)
    if str(export) == "-":
        sys.stdout.buffer.write(exported.encode())
        return
    if export is not None:
        write_file("--export", export, exported)
    if as_json:
        print_json([object_from(record) for record in records])
    elif export is not None:
        signed = "" if secret is None and signer is None else ", signed"
        console.print(f"wrote {len(records)} records to {clean(str(export))}{signed}", soft_wrap=True)
    else:
        console.print(timeline(records))


def timeline(records: Sequence[AuditRecord]) -> Table:
    """Return the records as a table, oldest first; a state is named where it is entered.

    On a narrow screen it keeps what happened and leaves out when and by whom.
    """
    narrow = is_narrow()
    table = plain_table("#", "trigger", "state") if narrow else plain_table(*_COLUMNS)
    table.columns[0].justify = "right"
    wrapped = {"trigger"} if narrow else {"by"}
    for column in table.columns:
        column.no_wrap = column.header not in wrapped
    for record in records:
        moved = record.source != record.target
        trigger = Text(clean(record.trigger), style="bold" if moved else "")
        state = Text.assemble(("→ ", "dim"), state_text(record.target)) if moved else Text("·", style="dim")
        cells: list[str | Text] = [str(record.version), trigger, state]
        if not narrow:
            cells.insert(1, Text(moment(record.at), style="dim"))
            cells.append(f"{record.step}.{record.attempt}" if record.step else "")
            cells.append(Text(clean(short_actor(record.actor)), style="dim"))
        table.add_row(*cells)
    return table


def short_actor(actor: str) -> str:
    """Return who acted; of a worker its process, which is what an operator looks for."""
    kind, _, name = actor.partition(":")
    _, *process = name.split(":")
    return f"{kind} {process[0]}" if kind == "worker" and process else actor
