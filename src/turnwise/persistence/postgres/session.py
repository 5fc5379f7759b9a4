"""A session with one server, and what it can read there."""

from __future__ import annotations

from typing import Final, NamedTuple

import asyncpg

_NO_PARTS: Final = (
    "(SELECT chat, seq, kind, 0::bigint AS step, 0::bigint AS attempt, at, body FROM events WHERE false)"
    " AS partial_events"
)


class Server(NamedTuple):
    """A host and its port, or `None` for what asyncpg finds in its environment."""

    host: str | None
    port: int | None

    def __str__(self) -> str:
        return f"{self.host or 'the default server'}{'' if self.port is None else f':{self.port}'}"


class Session(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection that knows its server."""

    __slots__ = ("cluster", "server", "timeline")

    server: Server
    cluster: str | None
    timeline: int | None
    """The server's timeline; `None` of a standby, or if it cannot be read."""

    def readable(self, sql: str) -> str:
        """Return a query that leaves the streamed parts out on a hot standby, which has no unlogged tables."""
        is_standby = getattr(self.get_settings(), "in_hot_standby", "off") == "on"
        return sql.replace("FROM partial_events", f"FROM {_NO_PARTS}") if is_standby else sql
