"""The keys of audit logs and checkpoints: from files or the environment, never from the command line or a screen."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from turnwise.cli.files import read_file, write_file
from turnwise.cli.style import clean, console
from turnwise.engine.checkpoints.checkpoints import Checkpoints
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
        "--signing-key", metavar="FILE", help="A file with an Ed25519 private key (PEM): sign the log with it."
    ),
]
PublicKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="A file with public keys (PEM): log or checkpoints must be signed with one of them.",
    ),
]
CheckpointsOption = Annotated[
    Path | None,
    typer.Option("--checkpoints", metavar="FILE", help="Compare the log with these published checkpoints."),
]


def published_files(checkpoints: Path | None, public_key: Path | None) -> dict[str, Any]:
    """Return the arguments `checkpoints` and `public_key` that files hold."""
    if checkpoints is not None and public_key is None:
        raise SettingsError("--checkpoints", "needs --public-key: without it anybody could have written them")
    text = None if checkpoints is None else read_file("--checkpoints", checkpoints).decode(errors="replace")
    return {"checkpoints": text, "public_key": None if public_key is None else read_file("--public-key", public_key)}


def signer_of(file: Path | None) -> SigningKey | None:
    """Return the Ed25519 key that a file holds; `None` if none was named."""
    if file is None:
        return None
    try:
        return SigningKey(read_file("--signing-key", file))
    except SettingsError as error:
        raise SettingsError("--signing-key", error.problem) from error


def signing_key(file: Path | None) -> bytes | None:
    """Return the key, without the line feed that editors add; `None` if none was given."""
    if file is not None:
        name, key = "--key", read_file("--key", file).rstrip(b"\r\n")
    elif VARIABLE in os.environ:
        name, key = VARIABLE, os.environ[VARIABLE].encode(errors="surrogateescape")
    else:
        return None
    if not key:
        raise SettingsError(name, "the key is empty")
    return key


PUBLISH: Final = "--checkpoints"
PublishOption = Annotated[
    list[str] | None,
    typer.Option(
        PUBLISH,
        metavar="PLACE",
        help="Append signed checkpoints of the logs to this file, or post them to this address; may be repeated. An "
        "engine has its own setting.",
    ),
]
PublishingKeyOption = Annotated[
    Path | None,
    typer.Option("--signing-key", metavar="FILE", help="A file with the Ed25519 private key (PEM) of the checkpoints."),
]


def checkpoints_of(places: Sequence[str] | None, key: Path | None) -> Checkpoints | None:
    """Return the checkpoints that the two options ask for; `None` without them."""
    signer = signer_of(key)
    if not places:
        if signer is not None:
            raise SettingsError("--signing-key", f"signs checkpoints: say where they go, with {PUBLISH} PLACE")
        return None
    if signer is None:
        raise SettingsError(PUBLISH, "are signed: name the key, with --signing-key FILE; `turnwise keygen` makes one")
    try:
        return Checkpoints(signer, places)
    except SettingsError as error:
        raise SettingsError(PUBLISH, error.problem) from error


def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file for the private key; it must not exist.")],
) -> None:
    """Create a pair of Ed25519 keys: FILE signs audit logs and checkpoints, FILE.pub checks them."""
    if not file.name:
        raise SettingsError("FILE", f"{str(file)!r} is a folder; name a file in it")
    public = file.with_name(f"{file.name}.pub")
    if os.path.lexists(public):
        raise SettingsError("FILE", f"{str(public)!r} is there already, and is not overwritten")
    key = SigningKey.generate()
    _write_secret(file, key.private_pem)
    try:
        write_file("FILE", public, key.public_pem)
    except (OSError, SettingsError):
        file.unlink()
        raise
    for line in (
        f"wrote {clean(str(file))}, which signs",
        "  keep it where those who may write to the database cannot read it",
        f"wrote {clean(str(public))}, which checks",
        f"  give it to auditors (key {key.key_id})",
    ):
        console.print(line, soft_wrap=True)


def _write_secret(file: Path, pem: bytes) -> None:
    """Write a file that only this user may read, from its first byte on."""
    try:
        place = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        reason = "is there already, and is not overwritten" if error.errno == errno.EEXIST else error.strerror
        raise SettingsError("FILE", f"{str(file)!r}: {reason}") from error
    with os.fdopen(place, "wb") as private:
        private.write(pem)
