"""The keys of audit logs: from files or the environment, never from the command line or a screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from turnwise.cli.input import read_file
from turnwise.persistence.audit.signing import SigningKey
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

SigningKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--signing-key", metavar="FILE", help="The file that holds an Ed25519 private key as PEM: sign the log with it."
    ),
]
PublicKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="The file that holds the public keys, as PEM: log or checkpoints must be signed with one of them.",
    ),
]
CheckpointsOption = Annotated[
    Path | None,
    typer.Option("--checkpoints", metavar="FILE", help="Compare the log with checkpoints that were published."),
]


def published_files(checkpoints: Path | None, public_key: Path | None) -> dict[str, Any]:
    """Return the arguments `checkpoints` and `public_key` that files hold.

    Raises:
        SettingsError: one cannot be read, or there are checkpoints and no key.
    """
    if checkpoints is not None and public_key is None:
        raise SettingsError("--checkpoints", "needs --public-key: without it anybody could have written them")
    text = None if checkpoints is None else read_file("--checkpoints", checkpoints).decode(errors="replace")
    return {"checkpoints": text, "public_key": None if public_key is None else read_file("--public-key", public_key)}


def signer_of(file: Path | None) -> SigningKey | None:
    """Return the Ed25519 key that a file holds; `None` if none was named.

    Raises:
        SettingsError: the file cannot be read, or holds no such key.
    """
    if file is None:
        return None
    try:
        return SigningKey(read_file("--signing-key", file))
    except SettingsError as error:
        raise SettingsError("--signing-key", error.problem) from error


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
