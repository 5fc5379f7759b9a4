"""`turnwise audit`: every transition of a chat, as a table. Also how one step of a log looks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.files import write_file
from turnwise.cli.keys import KeyOption, SigningKeyOption, signer_of, signing_key
from turnwise.cli.options import ChatArgument, JsonOption, with_source
from turnwise.cli.style import (
    STATE_STYLE,
    clean,
    console,
    excerpt,
    is_narrow,
    moment,
    plain_table,
    print_json,
    state_text,
)
from turnwise.diagrams.durations import duration
from turnwise.persistence.audit.record import AuditRecord, object_from
from turnwise.persistence.audit.verify import Verdict
from turnwise.states.errors import SettingsError

_COLUMNS: Final = ("#", "time (UTC)", "trigger", "state", "step", "by")


@with_source()
def audit(
    chat: ChatArgument,
    *,
    source: ChatSource,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the log as JSON Lines; - prints it."),
    ] = None,
    key: KeyOption = None,
    sign_with: SigningKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the log of a chat: one line for every transition."""
    for option, file in {"--key": key, "--signing-key": sign_with}.items():
        if export is None and file is not None:
            raise SettingsError(option, "signs a log that is exported: say where to with --export, or leave it out")
    if str(export) == "-" and as_json:
        raise SettingsError("--json", "would be printed behind the log: leave it out, or name a file with --export")
    secret, signer = signing_key(key), signer_of(sign_with)

    async def log(chats: Chats, chat_id: str) -> tuple[list[AuditRecord], str]:
        return await chats.audit(chat_id), await chats.export_audit(chat_id, key=secret, signer=signer)

    records, exported = source.on_chat(chat, log)
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
    """Return the actor. For a worker, return its process: operators look for that."""
    kind, _, name = actor.partition(":")
    _, *process = name.split(":")
    return f"{kind} {process[0]}" if kind == "worker" and process else actor


_MILLISECOND: Final = timedelta(milliseconds=1)


class Step(msgspec.Struct, frozen=True):
    """One record of a log, as it is shown."""

    record: AuditRecord
    after: timedelta | None
    """The time since the record before, by their clock, which may have been set back; `None` for the first."""
    problem: str | None
    """What is wrong with it."""


def steps_of(records: Sequence[AuditRecord], verdict: Verdict) -> list[Step]:
    """Return the steps of a log up to the first that is wrong."""
    checked = records if verdict.ok else records[: verdict.position]
    return [
        Step(
            record,
            after=None if number == 0 else record.at - checked[number - 1].at,
            problem=verdict.problem if not verdict.ok and verdict.position == number + 1 else None,
        )
        for number, record in enumerate(checked)
    ]


def step_lines(step: Step, *, of: int, width: int) -> list[Text]:
    """Return a step as lines, none wider than `width`."""
    record, moved = step.record, step.record.source != step.record.target
    way = f"{record.source or 'new'} → {record.target}" if moved else f"stays in {record.target}"
    style = STATE_STYLE.get(record.target, "")
    numbers = f"turn {record.turn} · step {record.step} · attempt {record.attempt}" if record.turn else ""
    pause = "" if step.after is None else f"  {_pause(step.after)}"
    lines = [
        Text.assemble((f"{record.version}/{of} ", "dim"), (excerpt(record.trigger, width), "bold")),
        Text(excerpt(way, width - 2), style=style),
        Text.assemble(("by ", "dim"), excerpt(short_actor(record.actor), width)),
        Text.assemble((f"{moment(record.at)}", "dim"), pause),
    ]
    if numbers:
        lines.append(Text(numbers, style="dim"))
    if record.reason is not None:
        lines.append(Text.assemble(("because: ", "dim"), excerpt(record.reason, width)))
    if step.problem is not None:
        lines.append(Text(f"✗ {excerpt(step.problem, 4 * width)}", style="red"))
    for write in record.writes:
        identity = (f" {excerpt(write.id, width)}", "dim")
        lines.append(Text.assemble(("  writes ", "dim"), excerpt(write.kind, width), identity))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _pause(after: timedelta) -> str:
    """Return the time since the step before, with its sign: a clock may have been set back."""
    return f"{'-' if after < timedelta() else '+'}{duration(timedelta(milliseconds=round(abs(after) / _MILLISECOND)))}"
