"""The key that audit logs are signed with: from a file or the environment, never from the command line or a screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from turnwise.cli.input import read_file
from turnwise.states.errors import SettingsError

VARIABLE: Final = "TURNWISE_AUDIT_KEY"

KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help=f"The file that holds the key of the log's signature; else the variable {VARIABLE}, if it is set.",
    ),
]


def signing_key(file: Path | None) -> bytes | None:
    """Return the key, without the line's end that editors add; `None` if none was given.

    Raises:
        SettingsError: the file cannot be read, or the key is empty.
    """
    if file is not None:
        name, key = "--key", read_file("--key", file).rstrip(b"\r\n")
    elif VARIABLE in os.environ:
        name, key = VARIABLE, os.environ[VARIABLE].encode(errors="surrogateescape")
    else:
        return None
    if not key:
        raise SettingsError(name, "the key is empty")
    return key
