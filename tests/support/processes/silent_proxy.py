"""A proxy that can fall silent without closing connections, like a network that drops packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class SilentProxy:
    """Forwards connections to a socket; while it is silent, bytes wait, and connections are not accepted."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0

    @classmethod
    @asynccontextmanager
    async def to(cls, socket: str) -> AsyncIterator[SilentProxy]:
        """Run a proxy to a socket."""
        proxy = cls(socket)
        server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            for pump in proxy._pumps:
                pump.cancel()
            await asyncio.gather(*proxy._pumps, return_exceptions=True)

    def fall_silent(self) -> None:
        """Forward nothing, in either direction."""
        self._speaks.clear()

    def speak(self) -> None:
        """Forward waiting and new bytes."""
        self._speaks.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            await self._speaks.wait()
            answers, there = await asyncio.open_unix_connection(self._socket)
            pumps = [asyncio.create_task(self._pump(*way)) for way in ((reader, there), (answers, writer))]
            self._pumps.update(pumps)
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # there is no server: the client sees the end of its connection
        finally:
            for end in (writer, there):
                if end is not None:
                    end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._speaks.wait()
                writer.write(data)
                await writer.drain()
