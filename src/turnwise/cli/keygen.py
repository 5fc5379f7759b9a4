"""`turnwise keygen`: a pair of keys for logs and checkpoints."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli.output import write_file
from turnwise.cli.style import clean, console
from turnwise.persistence.audit.signing import SigningKey
from turnwise.states.errors import SettingsError, TurnwiseError


def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key goes; it must not be there yet.")],
) -> None:
    """Make a pair of Ed25519 keys: FILE signs audit logs and checkpoints, FILE.pub checks them."""
    if not file.name:
        raise SettingsError("FILE", f"{str(file)!r} is a folder; name a file in it")
    public = file.with_name(f"{file.name}.pub")
    if os.path.lexists(public):
        raise SettingsError("FILE", f"{str(public)!r} is there already, and is not overwritten")
    key = SigningKey.generate()
    _write_secret(file, key.private_pem)
    try:
        write_file("FILE", public, key.public_pem)
    except TurnwiseError:
        file.unlink()
        raise
    for line in (
        f"wrote {clean(str(file))}, which signs: keep it where those who may write to the database cannot read it",
        f"wrote {clean(str(public))}, which checks: give it to whoever asks (key {key.key_id})",
    ):
        console.print(line, soft_wrap=True)


def _write_secret(file: Path, pem: bytes) -> None:
    """Write a file that only this user may read, from its first byte on."""
    try:
        place = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        reason = "is there already, and is not overwritten" if error.errno == errno.EEXIST else error.strerror
        raise SettingsError("FILE", f"{str(file)!r}: {reason}") from error
    except ValueError as error:
        raise SettingsError("FILE", f"{str(file)!r} is no name of a file: {error}") from error
    with os.fdopen(place, "wb") as private:
        private.write(pem)
