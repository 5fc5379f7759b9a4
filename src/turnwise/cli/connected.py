"""The client of the service that `--server` names."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from turnwise.persistence.store_url import without_password
from turnwise.states.errors import InvalidArgument, SettingsError

if TYPE_CHECKING:
    from turnwise.client import Client

SCHEMES: Final = ("http://", "https://")
"""How the URL of a service begins; that of no store does."""
TOKEN: Final = "TURNWISE_TOKEN"  # noqa: S105 - its name
"""The variable that holds the token. It is no option, because every user of a machine sees the options of programs."""


def place_of(store: str, server: str | None) -> str:
    """Return where the chats are: the service, if one is named, else the store.

    Raises:
        SettingsError: the service is named by something that is no URL.
    """
    if server is None:
        return store
    if not server.startswith(SCHEMES):
        raise SettingsError(
            "--server", f"must be like https://chats.example.com; it was {without_password(server)!r:.100}"
        )
    return server


def token_of_service() -> str:
    """Return the token that the environment holds.

    Raises:
        SettingsError: it holds none.
    """
    token = os.environ.get(TOKEN)
    if not token:
        raise SettingsError("--server", f"needs a token of the service in the variable {TOKEN}")
    return token


def address_of(server: str) -> str:
    """Return the address of a service, to which paths may be added.

    Raises:
        SettingsError: the extra `client` is not installed, or the URL is none of a service.
    """
    from turnwise.client.client import sound_url  # noqa: PLC0415 - an extra's

    try:
        return sound_url(server)
    except InvalidArgument as error:
        raise SettingsError("--server", error.problem) from None


@asynccontextmanager
async def connected(server: str) -> AsyncIterator[Client]:
    """Open a client of a service. It waits a moment, not longer, for one that does not answer: somebody looks on.

    Raises:
        SettingsError: the extra `client` is not installed, there is no token, or the URL is none.
    """
    from turnwise.client import Client, ClientSettings  # noqa: PLC0415 - an extra's

    address, token = address_of(server), token_of_service()
    try:
        client = Client(address, token=token, settings=ClientSettings(patience=5))
    except InvalidArgument as error:
        raise SettingsError(TOKEN, error.problem) from None
    async with client:
        yield client
