"""Serves an engine with uvicorn, and stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import FrameType
from typing import Final, Literal

import anyio
import uvicorn

from turnwise.engine.engine import Engine
from turnwise.service.app import application
from turnwise.service.auth import Authenticator
from turnwise.service.connections import connections
from turnwise.service.settings import ServiceSettings
from turnwise.service.webhooks import Webhook, deliver_webhooks
from turnwise.states.values.checked import checked

LogLevel = Literal["critical", "error", "warning", "info", "debug", "trace"]

_CUT_OFF: Final = "ASGI callable returned without completing response."


def _is_logged(record: logging.LogRecord) -> bool:
    """Whether uvicorn may log this: it has announced the end of all requests, and the guard logs slow readers."""
    ended = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not ended and record.getMessage() != _CUT_OFF


class _Server(uvicorn.Server):
    """Ends streams when it is asked to stop: uvicorn waits for them before it ends the application."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: Engine,
        opened: Callable[[], object] | None,
        webhooks: Sequence[Webhook],
    ) -> None:
        super().__init__(config)
        self._engine = engine
        self._opened = opened
        self._webhooks = webhooks
        self._opening = anyio.CancelScope()
        engine.add_failure_callback(self._stop)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the engine, then serve it: if an application opened it, uvicorn would report why it cannot."""
        self._loop = asyncio.get_running_loop()
        with self._signals_handled():
            async with AsyncExitStack() as stack:
                with self._opening:
                    await stack.enter_async_context(self._engine)
                if self.should_exit:
                    return
                await stack.enter_async_context(deliver_webhooks(self._engine, self._webhooks))
                if self._opened is not None:
                    self._opened()
                await super().serve(sockets)

    def _stop(self) -> None:
        """End with an engine that has ended by an error: leaving it raises that."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: they are handled already."""
        yield

    @contextmanager
    def _signals_handled(self) -> Iterator[None]:
        """Handle the signals that ask to stop. Having stopped is no failure, so none of them is raised again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, before in handlers.items():
                signal.signal(number, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop: not ready any more, and every stream is asked to reconnect elsewhere.

        An engine that is still opening, perhaps waiting for another process, opens no more.
        """
        self._engine.release_followers()
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._opening.cancel)


@checked
async def serve(
    engine: Engine,
    *,
    auth: Authenticator,
    sockets: list[socket.socket],
    settings: ServiceSettings | None = None,
    log_level: LogLevel = "info",
    opened: Callable[[], object] | None = None,
) -> None:
    """Serve an engine until SIGTERM or SIGINT; then streams are asked to reconnect and running jobs are released.

    Args:
        engine: the engine to serve, not entered yet.
        auth: identifies the sender of a request.
        sockets: where to listen, bound already.
        settings: limits; open requests may take `shutdown_seconds` after a signal to stop.
        log_level: of uvicorn.
        opened: called once the engine is open.

    Raises:
        StoreError: the engine's store cannot be opened.
        Exception: what the engine ended by.
    """
    settings = settings or ServiceSettings()
    for listener in sockets:
        if listener.family in (socket.AF_INET, socket.AF_INET6):
            # Connections inherit it. asyncio sets it for sockets of its own alone; without it, the second of two pieces
            # waits until the reader has acknowledged the first, which takes 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    logging.getLogger("uvicorn.error").addFilter(_is_logged)
    app = application(engine, auth=auth, settings=settings)
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)),
        server_header=False,
        ws="none",  # the service has no WebSockets; their packages need not be imported
        h11_max_incomplete_event_size=65_536,
        http=connections(settings),
    )
    await _Server(config, engine, opened, settings.webhooks).serve(sockets)
