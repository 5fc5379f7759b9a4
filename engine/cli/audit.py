"""`turnwise audit`: every transition of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.table import Table
from rich.text import Text

from turnwise.engine.cli.choosing import chosen, reading
from turnwise.engine.cli.look import clock_time, console, plain_table, print_json, state_text
from turnwise.engine.cli.options import DEFAULT_STORE, ChatArgument, JsonOption, StoreOption
from turnwise.persistence.audit import AuditRecord


def audit(
    chat: ChatArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the log as JSON Lines, to be verified anywhere."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the timeline of a chat: one line for every transition."""
    records, exported = anyio.run(_log, store, chat)
    if export is not None:
        export.write_text(exported, encoding="utf-8")
    if as_json:
        print_json(records)
    elif export is not None:
        console.print(f"wrote {len(records)} records to {export}", soft_wrap=True, markup=False)
    else:
        console.print(timeline(records))


def timeline(records: Sequence[AuditRecord]) -> Table:
    """Return the records as a table, oldest first; a state is named where it is entered."""
    table = plain_table("#", "time (UTC)", "trigger", "state", "step", "by")
    table.columns[0].justify = "right"
    for column in table.columns[:-1]:
        column.no_wrap = True
    for record in records:
        moved = record.source != record.target
        table.add_row(
            str(record.version),
            Text(clock_time(record.at), style="dim"),
            Text(record.trigger, style="bold" if moved else ""),
            Text.assemble(("→ ", "dim"), state_text(record.target)) if moved else Text("·", style="dim"),
            f"{record.step}.{record.attempt}" if record.step else "",
            Text(short_actor(record.actor), style="dim"),
        )
    return table


def short_actor(actor: str) -> str:
    """Return who acted; of a worker its process, which is what an operator looks for."""
    kind, _, name = actor.partition(":")
    _, *process = name.split(":")
    return f"{kind} {process[0]}" if process else actor


async def _log(store: str, name: str) -> tuple[list[AuditRecord], str]:
    async with reading(store) as engine:
        found = await chosen(engine, name)
        return await engine.audit(found.id), await engine.export_audit(found.id)
