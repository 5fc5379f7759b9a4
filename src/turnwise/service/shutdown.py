"""Graceful shutdown under uvicorn, and the end of a process whose engine has failed."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import uvicorn

from turnwise.engine.engine import Engine
from turnwise.logger import logger
from turnwise.service.settings import ServiceSettings

GRACE_S: Final = 0.5
"""After this time requests that are still open are cancelled, so that an idle client cannot delay the shutdown."""


def running_server() -> uvicorn.Server | None:
    """Return the uvicorn server whose method handles SIGTERM in this process; `None` if there is none."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if isinstance(server, uvicorn.Server) else None


class OpenRequests:
    """The requests to one engine whose responses are not complete."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def opened(self, port: int | None) -> Iterator[None]:
        """Track the current task's request, which arrived at `port`, while inside."""
        self.end_with_server(port)
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def end_with_server(self, port: int | None = None) -> None:
        """End the requests when the uvicorn server of this process stops, if it listens on `port` (`None`: any)."""
        server = running_server()
        if server is None or not server.started:
            return
        if self not in _ENDED_BY.get(server, ()):
            ports = {socket.getsockname()[1] for listener in server.servers for socket in listener.sockets}
            if port is None or port in ports:
                _ended_by(server).add(self)

    def end(self, *, grace_s: float | None) -> None:
        """End event streams; their clients reconnect. Cancel other requests after `grace_s` (`None`: never)."""
        self._engine.release_followers()
        if grace_s is not None:
            asyncio.get_running_loop().call_later(grace_s, self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


_ENDED_BY: Final[WeakKeyDictionary[uvicorn.Server, WeakSet[OpenRequests]]] = WeakKeyDictionary()
_OF_ENGINES: Final[WeakKeyDictionary[Engine, OpenRequests]] = WeakKeyDictionary()


def open_requests(engine: Engine) -> OpenRequests:
    """Return the requests to an engine; all routers of the engine share them."""
    return _OF_ENGINES.setdefault(engine, OpenRequests(engine))


def _ended_by(server: uvicorn.Server) -> WeakSet[OpenRequests]:
    """Return the requests that the server ends at its shutdown, before it waits for its connections."""
    if server not in _ENDED_BY:
        _ENDED_BY[server] = WeakSet()
        server.shutdown = _shutdown_of(server, server.shutdown, _ENDED_BY[server])  # type: ignore[method-assign]
    return _ENDED_BY[server]


def _shutdown_of(
    server: uvicorn.Server, shutdown: Callable[..., Coroutine[Any, Any, None]], open_requests: WeakSet[OpenRequests]
) -> Callable[..., Coroutine[Any, Any, None]]:
    async def end_requests_and_shut_down(*args: Any, **options: Any) -> None:
        grace_s = GRACE_S if server.config.timeout_graceful_shutdown is None else None
        for requests in list(open_requests):
            requests.end(grace_s=grace_s)
        await shutdown(*args, **options)

    return end_requests_and_shut_down


EXIT_CODE: Final = 1
_CLOSE_TIMEOUT_S: Final = 5.0
"""The application has this time to close after the server has waited for open requests."""

_failed: Final = threading.Event()


def end_process_with(engine: Engine, settings: ServiceSettings) -> None:
    """End the process with `EXIT_CODE` if the engine ends by an error."""
    engine.add_failure_callback(partial(_end_process, settings.shutdown_seconds + _CLOSE_TIMEOUT_S))


def _end_process(timeout_s: float) -> None:
    """Stop the server gracefully; exit after `timeout_s` in any case."""
    if _failed.is_set():
        return
    _failed.set()
    logger.error("process_ends", problem="its engine ended by an error", code=EXIT_CODE)
    threading.Thread(target=_exit_after, args=(timeout_s,), name="turnwise exit", daemon=True).start()
    if (server := running_server()) is not None:
        server.should_exit = True  # after a signal uvicorn would end with that signal's exit code
    else:
        signal.raise_signal(signal.SIGTERM)


def _exit_after(seconds: float) -> None:
    time.sleep(seconds)
    _exit()


@atexit.register
def _exit() -> None:
    """Exit with `EXIT_CODE`, which a server would not use. It is registered early and so runs late."""
    if _failed.is_set():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(EXIT_CODE)
