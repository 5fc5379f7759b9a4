"""The servers that a URL names: each has its own time to answer, and one that is silent loses all of its sessions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakSet

import anyio
import asyncpg

from turnwise.logger import logger
from turnwise.persistence.postgres.refusals import words_of
from turnwise.persistence.postgres.session import Server, Session, in_use
from turnwise.persistence.postgres.timeouts import AVOID_S, CONNECT_S, GONE_AFTER_S, RETRY_S, SUSPECT_AFTER_S
from turnwise.persistence.store_url import without_hosts
from turnwise.sockets import end_if_lost

_TIMELINE: Final = (
    "SELECT system_identifier::text AS cluster, CASE WHEN NOT pg_is_in_recovery()"
    " THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline FROM pg_control_system()"
)
_LATE_S: Final = 1.0
"""Seconds by which a time-out may come late: a later one says that this process stood still, not the server."""
_IN_TURN: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TargetServerAttributeNotMatched,
)
"""What one server says while another may be of use."""


class NoServer(ConnectionError):
    """No server of the URL can be used."""


class OldPrimary(ConnectionError):
    """A server is on a timeline that another has left behind: it was replaced, and goes on as a second primary."""


class Known:
    """What is known of servers: which did not answer lately, and the highest timeline of each cluster."""

    def __init__(self) -> None:
        self._silent_at: dict[Server, float] = {}
        self._timelines: dict[str, int] = {}
        self._refused: set[tuple[Server, int]] = set()

    def note_silent(self, server: Server, *, silent: bool) -> None:
        if silent:
            self._silent_at[server] = monotonic()
        else:
            self._silent_at.pop(server, None)

    def is_avoided(self, server: Server) -> bool:
        """Whether a server did not answer a short while ago."""
        silent_at = self._silent_at.get(server)
        return silent_at is not None and monotonic() < silent_at + AVOID_S

    def note_timeline(self, server: Server, cluster: str, timeline: int) -> None:
        """Note the timeline of a primary, or raise `OldPrimary`: there was a higher one, of another primary."""
        newest = self._timelines.get(cluster, 0)
        if timeline >= newest:
            self._timelines[cluster] = timeline
            return
        if (server, timeline) not in self._refused:
            self._refused.add((server, timeline))
            logger.warning("old_primary_refused", server=str(server), timeline=timeline, newest=newest)
        raise OldPrimary(f"an old primary: its timeline is {timeline}, and another server was seen on {newest}")


class Servers:
    """Connects to the first server that can be used.

    Args:
        url: names one server or several.
        set_up: makes a session ready.
        known: what several of these share.
        session_class: what connections are made of.
        options: of `asyncpg.connect`.
    """

    def __init__(
        self,
        url: str,
        set_up: Callable[[Session], Awaitable[object]],
        known: Known,
        *,
        session_class: type[Session] = Session,
        **options: Any,
    ) -> None:
        self._url = url
        self._set_up = set_up
        self._known = known
        self._session_class = session_class
        self._options = options
        self._sessions: WeakSet[Session] = WeakSet()
        self._checks: dict[Server, asyncio.Task[None]] = {}
        self._connecting: set[anyio.CancelScope] = set()
        self._is_over = False

    async def connect(self, *_: object, **__: object) -> Session:
        """Return a session, set up, with the first server that can be used. asyncpg's pool calls this, too.

        Raises:
            NoServer: there are several, and none can be used.
            Exception: the error of the only one, or of one that refused this user.
        """
        if self._is_over:
            raise ConnectionError("the store is being closed")
        servers, wanted = servers_of(self._url)
        problems: dict[Server, Exception] = {}
        for attributes in wanted:
            for server in sorted(servers, key=self._known.is_avoided):
                try:
                    return await self._connect(server, attributes, min(CONNECT_S, RETRY_S / len(servers)))
                except _IN_TURN as error:
                    problems[server] = error
        if len(problems) == 1:
            raise next(iter(problems.values()))
        raise NoServer("; ".join(f"{server}: {words_of(error)}" for server, error in problems.items()))

    async def _connect(self, server: Server, attributes: str | None, within_s: float) -> Session:
        with self.answer_of(server, within_s):
            session = await self._reach(server, attributes)
        try:
            end_if_lost(getattr(session, "_transport", None), GONE_AFTER_S)  # asyncpg offers no other way
            # It has answered: a pooler may let us wait now for a connection of its own.
            with in_use(session), Watch(self, server):
                await self._set_up(session)
                await self._note_timeline(session)
        except BaseException:
            session.terminate()
            raise
        self._known.note_silent(server, silent=False)
        return session

    async def _reach(self, server: Server, attributes: str | None) -> Session:
        session: Session = await asyncpg.connect(
            self._url if server.host is None else without_hosts(self._url)[0],
            host=server.host,
            port=server.port,
            target_session_attrs=attributes,
            connection_class=self._session_class,
            **self._options,
        )
        session.server, session.cluster, session.timeline = server, None, None
        self._sessions.add(session)
        return session

    @contextmanager
    def answer_of(self, server: Server, within_s: float) -> Iterator[None]:
        """Give a server so many seconds. If it does not answer in time, end all of its sessions.

        Raises:
            TimeoutError: it did not answer, or `give_up` was called.
        """
        due = monotonic() + within_s
        with anyio.move_on_after(within_s) as scope:
            self._connecting.add(scope)
            try:
                yield
            finally:
                self._connecting.discard(scope)
        if scope.cancelled_caught:
            if due <= monotonic() < due + _LATE_S:
                self.end(server)
            raise TimeoutError

    async def _note_timeline(self, session: Session) -> None:
        """Note the server's timeline; end the sessions with servers that are on a lower one.

        Raises:
            OldPrimary: the server itself is on a lower one.
        """
        try:
            row = await session.fetchrow(_TIMELINE)
        except asyncpg.PostgresConnectionError:
            raise
        except asyncpg.PostgresError:
            return  # some cloud services do not publish it
        session.cluster = cluster = row["cluster"]
        if row["timeline"] is None:
            return
        session.timeline = timeline = int(row["timeline"], 16)
        self._known.note_timeline(session.server, cluster, timeline)
        for other in [*self._sessions]:
            if other.cluster == cluster and other.timeline is not None and other.timeline < timeline:
                other.terminate()

    def end(self, server: Server) -> None:
        """End all sessions with a server that does not answer, and try it after the others for a while."""
        self._known.note_silent(server, silent=True)
        ended = self.end_sessions(server)
        if ended:
            logger.warning("server_silent", server=str(server), connections=ended)

    def end_sessions(self, server: Server | None = None) -> int:
        """End all sessions, or those with one server; return how many there were."""
        open_ones = [session for session in [*self._sessions] if not session.is_closed()]
        ended = [session for session in open_ones if server in (None, session.server)]
        for session in ended:
            session.terminate()
        return len(ended)

    def give_up(self) -> None:
        """End every session, and every try to make one, for good."""
        self._is_over = True
        for scope in [*self._connecting]:
            scope.cancel()
        self.end_sessions()

    def suspect(self, server: Server) -> None:
        """Look whether a server answers, unless another task is looking."""
        if server not in self._checks:
            self._checks[server] = asyncio.get_running_loop().create_task(self._check(server))

    async def _check(self, server: Server) -> None:
        """Connect to a server; if it does not answer, or is not there, end all sessions with it."""
        try:
            with self.answer_of(server, CONNECT_S):
                session = await self._reach(server, None)
                session.terminate()
        except TimeoutError:
            pass
        except OSError:
            self.end(server)
        except Exception as error:  # noqa: BLE001 - a server that refuses answers
            logger.debug("server_answers", server=str(server), problem=words_of(error))
        finally:
            del self._checks[server]

    async def close(self) -> None:
        for check in [*self._checks.values()]:
            check.cancel()
            with suppress(asyncio.CancelledError):
                await check


class Watch:
    """While a server is asked something, looks every few seconds whether it still answers others."""

    def __init__(self, servers: Servers, server: Server) -> None:
        self._servers = servers
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle

    def __enter__(self) -> None:
        self._timer = self._loop.call_later(SUSPECT_AFTER_S, self._suspect, self._loop.time() + SUSPECT_AFTER_S)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _suspect(self, due: float) -> None:
        if self._loop.time() < due + _LATE_S:
            self._servers.suspect(self._server)
        self.__enter__()


def servers_of(url: str) -> tuple[list[Server], list[str | None]]:
    """Return the servers that a URL names, and the values of `target_session_attrs` to try, in order.

    If it names none, or ports that do not fit, there is a single one: asyncpg finds it, or says what is wrong.
    """
    bare, named = without_hosts(url)
    options = dict(parse_qsl(urlsplit(bare).query))
    hosts = (named or options.get("host", "")).split(",")
    ports = (options.get("port") or os.environ.get("PGPORT") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    attributes = options.get("target_session_attrs")
    wanted: list[str | None] = ["standby", "any"] if attributes == "prefer-standby" else [attributes]
    if hosts == [""] or len(ports) != len(hosts):
        return [Server(None, None)], [attributes]
    return [_server(host, port) for host, port in zip(hosts, ports, strict=True)], wanted


def _server(host: str, port: str) -> Server:
    if host.startswith("/"):
        return Server(host, int(port))
    name = host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0]
    return Server(unquote(name), urlsplit(f"//{host}").port or int(port))
