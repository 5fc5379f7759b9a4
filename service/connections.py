"""Connections whose clients nobody knows yet: they have to say soon what they want, and there are only so many."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from turnwise.service.caller import CALLER
from turnwise.service.settings import ServiceSettings

_HTTP: Final[Any] = AutoHTTPProtocol


class Strangers:
    """The connections without a principal, the oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        """Count a new connection; if there are too many, close the oldest: a client with a token is soon known."""
        self._connections[connection] = None
        while len(self._connections) > self._most:
            oldest = next(iter(self._connections))
            self.forget(oldest)
            if not oldest.has_principal:
                oldest.close()

    def forget(self, connection: Connection) -> None:
        """Count a connection no more."""
        self._connections.pop(connection, None)


class Connection(_HTTP):  # type: ignore[misc] # uvicorn's own, by h11 or httptools
    """A connection that is closed if the headers of a request do not come in time."""

    def __init__(self, *args: Any, strangers: Strangers, timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._strangers, self._timeout_s = strangers, timeout_s
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def has_principal(self) -> bool:
        """Whether its latest request came with a token that somebody has."""
        return self.cycle is not None and CALLER in self.cycle.scope

    @property
    def _waits_for_headers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Wait for headers."""
        super().connection_made(transport)
        self._strangers.add(self)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Wait no longer if the headers are complete; of the next request on the connection they have as long."""
        if self._waits_for_headers:
            self._expect_headers()
        super().data_received(data)
        if not self._waits_for_headers and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._strangers.forget(self)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection, whatever was said on it."""
        self.transport.abort()

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._deadline = None
        if self._waits_for_headers:
            self.close()


def connections(settings: ServiceSettings) -> Any:
    """Return what makes the connections of one server, for uvicorn's `Config(http=...)`."""
    strangers = Strangers(settings.anonymous_connections)

    class Limited(Connection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, strangers=strangers, timeout_s=settings.header_patience, **options)

    return Limited
