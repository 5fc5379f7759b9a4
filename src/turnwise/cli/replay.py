"""`turnwise replay`: steps through the log of a chat."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwise.cli.chat_argument import Chats, on_chat
from turnwise.cli.connected import place_of
from turnwise.cli.input import read_file
from turnwise.cli.options import DEFAULT_STORE, JsonOption, ServerOption, StoreOption
from turnwise.cli.step_view import Step, step_lines, steps_of
from turnwise.cli.style import console, print_json
from turnwise.cli.verify import check_options_of_a_log, is_log, verdict_line
from turnwise.persistence.audit.record import AuditRecord, from_json, lines_of, object_from
from turnwise.persistence.audit.verify import Verdict, verify_export, verify_records


def replay(
    target: Annotated[str, typer.Argument(metavar="FILE|CHAT", help="An exported log (- reads one), or a chat.")],
    *,
    store: StoreOption = DEFAULT_STORE,
    server: ServerOption = None,
    delay: Annotated[
        float | None, typer.Option("--delay", metavar="SECONDS", min=0, max=3600, help="Go on by itself.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Step through a log: who fired what, where it led, what was written, and how long that took.

    Space, Enter and → go on, ← goes back, Home and End jump, q leaves. Without a terminal all steps are printed.
    """
    if is_log(target):
        check_options_of_a_log({"--server": server})
        records, verdict = _file(Path(target))
    else:
        records, verdict = _chat(place_of(store, server), target)
    steps = steps_of(records, verdict)
    if as_json:
        print_json({"steps": [_spelled(step) for step in steps], "verdict": verdict})
    else:
        if steps and sys.stdin.isatty() and console.is_terminal:
            from turnwise.cli.stepper import Stepper  # noqa: PLC0415 - takes long to import

            Stepper(steps, delay).run()
        else:
            for step in steps:
                for line in step_lines(step, of=len(steps), width=console.width):
                    console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
                console.print()
        console.print(verdict_line(verdict))
    if not verdict.ok:
        raise typer.Exit(1)


def _spelled(step: Step) -> dict[str, Any]:
    return {"record": object_from(step.record), "after": step.after, "problem": step.problem}


def _chat(place: str, name: str) -> tuple[Sequence[AuditRecord], Verdict]:
    async def read(chats: Chats, chat_id: str) -> Sequence[AuditRecord]:
        return await chats.audit(chat_id)

    records = on_chat(place, name, read)
    return records, verify_records(records)


def _file(file: Path) -> tuple[Sequence[AuditRecord], Verdict]:
    text = read_file("FILE|CHAT", file).decode(errors="replace")
    records: list[AuditRecord] = []
    for line in lines_of(text)[1:]:
        try:
            records.append(from_json(line))
        except ValueError:  # the checkpoint, or what the verdict tells of
            break
    return records, verify_export(text)
