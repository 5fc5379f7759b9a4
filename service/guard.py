"""Guards one request: its body may not be long or slow, its reader not slow, and its errors are problems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from turnwise.logger import logger
from turnwise.service.caller import SERVICE
from turnwise.service.problems import BodyTooLarge, InvalidRequest, ProblemRoute
from turnwise.service.routes.table import UPLOADS
from turnwise.service.service import Service
from turnwise.service.settings import ServiceSettings


class GuardedRoute(ProblemRoute):
    """A route of one service: subclasses name it."""

    service: ClassVar[Service]

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the handler of guarded requests."""
        handle, service = super().get_route_handler(), self.service
        settings = service.settings
        limit = settings.upload_limit_bytes if self.path_format.endswith(tuple(UPLOADS)) else settings.body_limit_bytes

        async def handle_guarded(request: Request) -> Response:
            request.scope[SERVICE] = service
            receive = _limited(request.receive, limit, settings)
            response = await handle(Request(request.scope, receive))
            return _Guarded(response, settings.reader_patience)

        return handle_guarded


def _limited(receive: Receive, limit: int, settings: ServiceSettings) -> Receive:
    """Return a way to receive a body that is neither longer nor slower than it may be."""
    seen = 0
    is_whole = False

    async def limited() -> Message:
        nonlocal seen, is_whole
        if is_whole:  # what comes now is the end of the connection, which may be long in coming
            return await receive()
        with anyio.move_on_after(settings.upload_patience) as patience:
            message = await receive()
        if patience.cancelled_caught:
            problem = f"the next piece did not come within {settings.upload_patience:g} s"
            raise InvalidRequest([{"field": "body", "problem": problem}])
        seen += len(message.get("body", b""))
        if seen > limit:
            raise BodyTooLarge(limit)
        is_whole = not message.get("more_body", False)
        return message

    return limited


class _Guarded(Response):
    """A response whose reader is cut off if it does not read."""

    def __init__(self, response: Response, patience: float) -> None:
        self._response, self._patience = response, patience
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""

        async def send_in_time(message: Message) -> None:
            with anyio.fail_after(self._patience):
                await send(message)

        try:
            await self._response(scope, receive, send_in_time)
        except TimeoutError:
            logger.info("reader_cut_off", path=scope["path"], patience=self._patience)
