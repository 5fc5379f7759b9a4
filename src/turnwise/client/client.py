"""The client: the methods of `Engine`, for the chats of a service."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

import httpx

from turnwise.client.connection import ActingConnection, Connection
from turnwise.client.remote_chats import RemoteChats
from turnwise.client.settings import ClientSettings
from turnwise.persistence.store_url import without_password
from turnwise.states.errors import InvalidArgument
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Actor
from turnwise.states.values.plain import shown


@checked
class Client(RemoteChats):
    """The chats of a service: every method does what the method of that name of `Engine` does, and raises its errors.

    Use it as an async context manager. One client serves any number of tasks. The token names who acts;
    `acting` returns the same chats on behalf of another.

    Streams and waiting methods reconnect by themselves after the last event. Other requests are repeated if that is
    safe.

    Args:
        url: of the service, as in `https://chats.example.com` or `http://localhost:8080/v1`.
        token: of a principal of the service.
        settings: timeouts and retries of the client.

    Raises:
        InvalidArgument: the URL or the token cannot be one.
    """

    def __init__(self, url: str, *, token: str, settings: ClientSettings | None = None) -> None:
        self._connection = Connection(sound_url(url), _sound_token(token), settings or ClientSettings())

    async def __aenter__(self) -> Self:
        """Make ready to send. Nothing is sent before the first call of a method."""
        await self._connection.open()
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Close every connection; streams that are open end."""
        await self._connection.close()

    def acting(self, actor: Actor) -> RemoteChats:
        """Return the same chats on behalf of an actor, whom the audit log then names beside the operator of the token.

        Only an operator may act for others: with another token every method raises `NotAllowed`.

        Raises:
            InvalidArgument: the name is blank, longer than 1,024 bytes, or like that of a worker. A header of HTTP
                carries it, so each call raises this error for a name that is not printable ASCII.
        """
        return RemoteChats(ActingConnection(self._connection, actor))


def sound_url(url: str) -> str:
    """Return the address of a service, without a slash at its end."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_one &= "@" not in parts.netloc
        httpx.URL(url)  # knows more of addresses, such as that of 256.1.1.1 there is none
    except (ValueError, httpx.InvalidURL):
        is_one = False
    if "@" in url and not is_one:
        problem = "must hold no user and no password, as the token says who asks"
        raise InvalidArgument("url", f"{problem}; it was {shown(without_password(url))}")
    if not is_one or not url.isascii() or not url.isprintable() or " " in url or parts.query or parts.fragment:
        raise InvalidArgument("url", f"must be like https://chats.example.com; it was {shown(url)}")
    return url.rstrip("/")


def _sound_token(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument("token", "must be text of one word, as the service knows it; it is not shown here")
    return token
