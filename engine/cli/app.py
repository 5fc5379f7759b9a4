"""The program `turnwise`: its commands, and what becomes of an error."""

from __future__ import annotations

import sys
from typing import Final

import typer
from rich.text import Text

from turnwise.engine.cli.audit import audit
from turnwise.engine.cli.chat import chat
from turnwise.engine.cli.choosing import AmbiguousChat
from turnwise.engine.cli.demo.command import demo
from turnwise.engine.cli.diagram import diagram
from turnwise.engine.cli.explain import explain
from turnwise.engine.cli.listing import list_chats
from turnwise.engine.cli.look import errors
from turnwise.engine.cli.migrate import migrate
from turnwise.engine.cli.show import show
from turnwise.engine.cli.verify import verify
from turnwise.engine.cli.worker import worker
from turnwise.states.errors import ChatNotFound, SettingsError, TurnwiseError

PROBLEM: Final = 1
MISUSE: Final = 2
STOPPED: Final = 130
"""What a shell expects of a program that Ctrl-C ended."""

app = typer.Typer(
    name="turnwise",
    help="Run the life of LLM chats as a declared, durable state machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("chat")(chat)
app.command("list")(list_chats)
app.command("show")(show)
app.command("audit")(audit)
app.command("verify")(verify)
app.command("explain")(explain)
app.command("diagram")(diagram)
app.command("worker")(worker)
app.command("migrate")(migrate)


def main() -> None:
    """Run the command line and exit: 0 done, 1 a problem was found, 2 misuse."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr] # a terminal that knows no "✓" still works
    try:
        app()
    except TurnwiseError as error:
        errors.print(Text.assemble(("turnwise: ", "bold red"), (_sentence(str(error)), "red")))
        sys.exit(MISUSE if isinstance(error, SettingsError | ChatNotFound | AmbiguousChat) else PROBLEM)
    except KeyboardInterrupt:
        sys.exit(STOPPED)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
