"""The program `turnwise`: its commands, and its exit codes."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable
from importlib.metadata import version as installed_version
from typing import Annotated, Any, Final

import typer

from turnwise.cli.audit import audit
from turnwise.cli.budgets import budget, budgets, usage
from turnwise.cli.chat import chat
from turnwise.cli.consumers import consumers, inbox, undelivered
from turnwise.cli.demo.command import demo
from turnwise.cli.diagram import diagram
from turnwise.cli.doctor import doctor, migrate
from turnwise.cli.erase import delete, erase
from turnwise.cli.failures import DONE, exit_code_of, flush_output, forget_output
from turnwise.cli.keys import keygen
from turnwise.cli.operating import archive, interrupt, mark_read, resume, send, submit, unarchive
from turnwise.cli.scheduling import schedule, schedules, unschedule
from turnwise.cli.serve import inspect, serve
from turnwise.cli.show import explain, list_chats, show
from turnwise.cli.style import quiet_logs
from turnwise.cli.transfer import export, import_chat
from turnwise.cli.verify import replay, verify
from turnwise.cli.worker import worker, workers

_COMMANDS: Final[tuple[Callable[..., Any], ...]] = (
    *(demo, chat),
    *(list_chats, show, audit, replay, verify, explain, inspect),
    *(send, submit, interrupt, resume, archive, unarchive, mark_read, erase, delete),
    *(schedule, schedules, unschedule, undelivered),
    *(export, import_chat),
    *(budget, budgets, usage),
    *(inbox, consumers),
    *(doctor, diagram, worker, workers, serve, migrate, keygen),
)

COLLECT_AFTER: Final = 100_000
"""How many more objects there must be before Python looks for cycles. Chats make many objects and hardly a cycle: with
Python's 700, many chats at once spend a quarter of their time on looking."""

app = typer.Typer(
    name="turnwise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - how typer hands an option over
    if wanted:
        sys.stdout.write(f"turnwise {installed_version('turnwise')}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run the life of LLM chats as a declared, durable state machine."""


for command in _COMMANDS:
    app.command(command.__name__.partition("_")[0])(command)  # `list_chats` is `list`, which is another name in Python


def main() -> None:
    """Run the command line and exit: 0 done, 1 a problem was found, 2 wrong usage."""
    _open_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # A terminal that knows no "✓" still works, and so does one that sends what is no text.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    gc.set_threshold(COLLECT_AFTER)
    quiet_logs()
    code = _run()
    if code:
        forget_output()
    sys.exit(code or flush_output())


def _open_closed_streams() -> None:
    """Open the standard streams that are closed, as cron and daemons leave them, on nothing.

    Each gets the lowest number that is free, its own: no file that is opened later is taken for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, closefd=False))


def _run() -> int:
    try:
        app(prog_name="turnwise")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else DONE
    except BaseException as failure:  # noqa: BLE001 - a traceback helps no user at a prompt
        return exit_code_of(failure)
    return DONE
