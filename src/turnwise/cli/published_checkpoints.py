"""Checkpoints that a command's own engine publishes while it runs chats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from turnwise.cli.key import signer_of
from turnwise.engine.checkpoints.checkpoints import Checkpoints
from turnwise.states.errors import SettingsError

PUBLISH: Final = "--checkpoints"
PublishOption = Annotated[
    list[str] | None,
    typer.Option(
        PUBLISH,
        metavar="PLACE",
        help="Sign where the logs of agents' chats stand, and append that to this file or post it to this address; may "
        "be repeated. An engine has its own.",
    ),
]
PublishingKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--signing-key", metavar="FILE", help="The file that holds the Ed25519 private key of the checkpoints as PEM."
    ),
]


def checkpoints_of(places: Sequence[str] | None, key: Path | None) -> Checkpoints | None:
    """Return the checkpoints that the two options ask for; `None` if they are not there.

    Raises:
        SettingsError: one of them is there without the other, the key cannot be read, or a place is none.
    """
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
