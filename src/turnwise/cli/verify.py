"""`turnwise verify` and `turnwise replay`: check an audit log, and show it step by step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group
from rich.text import Text

from turnwise.cli.audit import Step, step_lines, steps_of
from turnwise.cli.connect import Chats, ChatSource
from turnwise.cli.files import STANDARD_INPUT, read_file
from turnwise.cli.keys import CheckpointsOption, KeyOption, PublicKeyOption, published_files, signing_key
from turnwise.cli.options import with_source
from turnwise.cli.style import Report, clean, console
from turnwise.persistence.audit.record import AuditRecord, from_json, lines_of, object_from
from turnwise.persistence.audit.verify import Verdict, verify_export, verify_records
from turnwise.states.errors import SettingsError

_NEED_A_CHAT: Final = {
    "--family": "an exported log is of one chat alone; name a chat of the store",
    "--files": "an exported log holds no files; name a chat of the store",
    "--server": "an exported log is read here, from its file; name a chat of the service",
}


@with_source("file_folder")
def verify(  # noqa: PLR0913 - the options of a command
    target: Annotated[
        str, typer.Argument(metavar="FILE|CHAT", help="An exported log, - for standard input, or a chat.")
    ],
    *,
    source: ChatSource,
    key: KeyOption = None,
    checkpoints: CheckpointsOption = None,
    public_key: PublicKeyOption = None,
    family: Annotated[
        bool, typer.Option("--family", help="Also check the subagents of the chat, at every depth.")
    ] = False,
    files: Annotated[bool, typer.Option("--files", help="Also check the bytes of every file of the chat.")] = False,
) -> Report:
    """Check a log: its hash chain, and every transition against the declared table.

    With --checkpoints, also check that it is the published log.
    """
    elsewhere = published_files(checkpoints, public_key)

    async def checked(chats: Chats, chat_id: str) -> Verdict:
        return await chats.verify(chat_id, family=family, files=files, **elsewhere)

    if is_log(target):
        check_options_of_a_log({"--family": family, "--files": files, "--server": source.is_service})
        text = read_file("FILE|CHAT", Path(target)).decode(errors="replace")
        verdict = verify_export(text, key=signing_key(key), **elsewhere)
    elif key is not None:
        raise SettingsError("--key", "a key is for an exported log; a chat of the store is not signed")
    elif public_key is not None and checkpoints is None:
        raise SettingsError("--public-key", "is for an exported log or for --checkpoints; a store is not signed")
    else:
        verdict = source.on_chat(target, checked)
    whole = [Text("✓ every file of the chat is there, byte for byte", style="green")] if verdict.ok and files else []
    return Report(verdict, Group(verdict_line(verdict), *whole), code=0 if verdict.ok else 1)


def is_log(target: str) -> bool:
    """Whether the argument names an exported log, and not a chat."""
    file = Path(target)
    return target == STANDARD_INPUT or bool(file.suffix) or len(file.parts) > 1 or os.path.exists(file)  # noqa: PTH110 - Path.exists raises if a name is too long


def check_options_of_a_log(options: Mapping[str, object]) -> None:
    """Refuse options that ask for more than a log holds: a verdict would seem to answer them."""
    for option, value in options.items():
        if value:
            raise SettingsError(option, _NEED_A_CHAT[option])


def verdict_line(verdict: Verdict) -> Text:
    """Return a verdict as a sentence."""
    if verdict.ok:
        elsewhere = "" if verdict.covered is None else f"; checkpoints bear out versions 1 to {verdict.covered}"
        return Text(
            f"✓ sound: the chain is unbroken and every transition is one of the table's{elsewhere}", style="green"
        )
    return Text(f"✗ not sound at version {verdict.position}: {clean(verdict.problem or '')}", style="red")


@with_source()
def replay(
    target: Annotated[
        str, typer.Argument(metavar="FILE|CHAT", help="An exported log, - for standard input, or a chat.")
    ],
    *,
    source: ChatSource,
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay",
            metavar="SECONDS",
            min=0,
            max=3600,
            help="Print the next step after this many seconds, without a pager.",
        ),
    ] = None,
) -> Report:
    """Step through a log: each trigger with its actor, new state, writes and time.

    A terminal shows them in a pager: Space goes on, b goes back, q leaves.
    """
    if is_log(target):
        check_options_of_a_log({"--server": source.is_service})
        records, verdict = _file(Path(target))
    else:
        records = source.on_chat(target, lambda chats, chat_id: chats.audit(chat_id))
        verdict = verify_records(records)
    steps = steps_of(records, verdict)
    spelled = [{"record": object_from(one.record), "after": one.after, "problem": one.problem} for one in steps]
    shown = partial(_print_steps, steps, verdict, delay)
    return Report({"steps": spelled, "verdict": verdict}, shown, code=0 if verdict.ok else 1)


def _print_steps(steps: Sequence[Step], verdict: Verdict, delay: float | None) -> None:
    seen = sys.stdin.isatty() and console.is_terminal
    os.environ.setdefault("LESS", "-R")  # for colours
    with console.pager(styles=True) if seen and delay is None else nullcontext():
        for step in steps:
            for line in step_lines(step, of=len(steps), width=console.width):
                console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
            console.print()
            if seen and delay is not None:
                time.sleep(delay)
    console.print(verdict_line(verdict))


def _file(file: Path) -> tuple[Sequence[AuditRecord], Verdict]:
    text = read_file("FILE|CHAT", file).decode(errors="replace")
    records: list[AuditRecord] = []
    for line in lines_of(text)[1:]:
        try:
            records.append(from_json(line))
        except ValueError:  # the checkpoint, or what the verdict names
            break
    return records, verify_export(text)
