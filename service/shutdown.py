"""Ends what a service has open when its server begins to stop: uvicorn waits for open responses before it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import uvicorn

from turnwise.engine.engine import Engine

GRACE_S: Final = 0.5
"""How long requests may go on once their streams were told to end: one whose client does nothing would hold up all."""


def running_server() -> uvicorn.Server | None:
    """Return the uvicorn server of this process, however it was started: it handles the signals."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if isinstance(server, uvicorn.Server) else None


class OpenRequests:
    """The requests to one engine that are not answered to their end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def opened(self, port: int | None) -> Iterator[None]:
        """Count a request of the current task, which came to a port."""
        self.end_with_server(port)
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def end_with_server(self, port: int | None = None) -> None:
        """Let the followers of the engine go, and end requests, once the uvicorn server of this process stops.

        Without a `port` it need not be the request's.
        """
        server = running_server()
        if server is None or not server.started:
            return
        ending = _ENDING.get(server)
        if ending is None or self not in ending:
            ports = {one.getsockname()[1] for listening in server.servers for one in listening.sockets}
            if port is None or port in ports:
                _ending_with(server).add(self)

    def end(self, *, patience: float | None) -> None:
        """Tell every reader to come back, and cancel what is still open after so many seconds; `None` for never."""
        self._engine.release_followers()
        if patience is not None:
            asyncio.get_running_loop().call_later(patience, self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


_ENDING: Final[WeakKeyDictionary[uvicorn.Server, WeakSet[OpenRequests]]] = WeakKeyDictionary()
_OF_ENGINES: Final[WeakKeyDictionary[Engine, OpenRequests]] = WeakKeyDictionary()


def open_requests(engine: Engine) -> OpenRequests:
    """Return the requests to an engine, whichever routes take them."""
    return _OF_ENGINES.setdefault(engine, OpenRequests(engine))


def _ending_with(server: uvicorn.Server) -> WeakSet[OpenRequests]:
    """Return the requests that end with a server: it tells them before it waits for its connections."""
    if server not in _ENDING:
        _ENDING[server] = WeakSet()
        server.shutdown = _telling(server, server.shutdown, _ENDING[server])  # type: ignore[method-assign]
    return _ENDING[server]


def _telling(
    server: uvicorn.Server, shutdown: Callable[..., Coroutine[Any, Any, None]], ending: WeakSet[OpenRequests]
) -> Callable[..., Coroutine[Any, Any, None]]:
    async def told(*args: Any, **options: Any) -> None:
        patience = GRACE_S if server.config.timeout_graceful_shutdown is None else None
        for requests in list(ending):
            requests.end(patience=patience)
        await shutdown(*args, **options)

    return told
