"""Asks whether something that cannot be taken back is meant."""

from __future__ import annotations

import sys

import typer

from turnwise.cli.style import errors
from turnwise.states.errors import SettingsError


def confirm(question: str, *, done: str) -> None:
    """Ask; leave if it is not meant, or if there is nobody to ask. What is `done` stands in the past: "erased".

    Raises:
        SettingsError: there is no terminal; `--yes` says it there.
    """
    if not sys.stdin.isatty():
        raise SettingsError("--yes", f"say it where no terminal is there to ask at: what is {done} does not come back")
    errors.print(f"{question} [y/N] ", end="", soft_wrap=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        errors.print(f"Nothing was {done}.")
        raise typer.Exit(1)
