"""Limits on connections without a valid token: a deadline for the headers of each request, and a maximum number."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from turnwise.service.caller import CALLER
from turnwise.service.settings import ServiceSettings
from turnwise.sockets import end_if_lost

GONE_AFTER_S: Final = 45
"""Seconds after which the connection of a client that has vanished ends: three pings of a stream."""
_HTTP: Final[Any] = AutoHTTPProtocol


class UnauthenticatedConnections:
    """The connections that have sent no valid token yet, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._connections: dict[HTTPConnection, None] = {}

    def add(self, connection: HTTPConnection) -> None:
        """Add a connection. Above the limit, close the oldest one, unless it has sent a valid token since."""
        self._connections[connection] = None
        while len(self._connections) > self._limit:
            oldest = next(iter(self._connections))
            self.discard(oldest)
            if not oldest.has_principal:
                oldest.close()

    def discard(self, connection: HTTPConnection) -> None:
        """Remove a connection if it is in the collection."""
        self._connections.pop(connection, None)


class HTTPConnection(_HTTP):  # type: ignore[misc] # uvicorn's own, by h11 or httptools
    """A uvicorn connection that is closed if the headers of a request do not arrive in time."""

    def __init__(
        self, *args: Any, unauthenticated: UnauthenticatedConnections, timeout_s: float, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._unauthenticated, self._timeout_s = unauthenticated, timeout_s
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def has_principal(self) -> bool:
        """Whether the latest request had a valid token."""
        return self.cycle is not None and CALLER in self.cycle.scope

    @property
    def _waits_for_headers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Start the deadline of the first request. A client whose packets vanish holds no stream for long."""
        super().connection_made(transport)
        end_if_lost(transport, GONE_AFTER_S)
        self._unauthenticated.add(self)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        """Cancel the deadline once the headers are complete. The first byte of the next request starts a new one."""
        if self._waits_for_headers:
            self._start_deadline()
        super().data_received(data)
        if not self._waits_for_headers and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and its deadline."""
        self._unauthenticated.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection at once, without a response."""
        self.transport.abort()

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._timeout_s, self._close_without_headers)

    def _close_without_headers(self) -> None:
        self._deadline = None
        if self._waits_for_headers:
            self.close()


def connections(settings: ServiceSettings) -> Any:
    """Return the protocol factory of one server, for uvicorn's `Config(http=...)`."""
    unauthenticated = UnauthenticatedConnections(settings.anonymous_connections)
    return partial(HTTPConnection, unauthenticated=unauthenticated, timeout_s=settings.header_timeout)
