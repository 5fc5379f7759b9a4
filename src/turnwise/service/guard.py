"""Guards one request: its body may not be long or slow, its reader not slow, and its errors are problems."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import anyio
import anyio.lowlevel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from turnwise.http_problems import BodyTooLarge, EncodedBody, InvalidRequest
from turnwise.logger import logger
from turnwise.service.caller import CALLER, OPERATION, SERVICE, authenticate_request, named_chat
from turnwise.service.problems import ProblemRoute, other_problem, problem_response
from turnwise.service.routes.table import HISTORIES, OPERATIONS, UPLOADS, RouteSpec
from turnwise.service.service import Service
from turnwise.service.settings import ServiceSettings
from turnwise.service.shutdown import open_requests
from turnwise.states.errors import TurnwiseError

SLOWEST_BYTES_PER_SECOND: Final = 1000
"""How fast a body has to come, on average, once `upload_timeout` has been used up."""
_MOST_DIGITS: Final = 20
_PIECE: Final = 65_536
"""Bytes of an answer that are given to the server at once."""


class GuardedRoute(ProblemRoute):
    """A route of one service: subclasses name it. It answers HEAD where it answers GET."""

    service: ClassVar[Service]
    routes: ClassVar[Mapping[Callable[..., Any], RouteSpec]]
    """The service's routes, by their functions."""
    outcome: ClassVar[str] = "; nothing was written"  # only FastAPI raises errors of HTTP here, as it reads the body

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request matches this route. HEAD matches the route of GET."""
        return super().matches(_as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: one whose method no route of this path has comes to the first of them."""
        asked, at = _as_get(scope), scope.get("server")
        with open_requests(self.service.engine).opened(None if at is None else at[1]):
            if asked["method"] not in (self.methods or ()):
                await _other_method(scope["method"], self.routes, self.endpoint)(scope, receive, send)
            elif scope["method"] == "HEAD":
                await _send_head(partial(super().handle, asked, receive), send)
            else:
                await super().handle(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the handler of guarded requests."""
        handle, service = super().get_route_handler(), self.service
        settings = service.settings
        route = self.routes[self.endpoint]
        operation = None if route.is_open else OPERATIONS[route.name]
        limit = _body_limit(route.path, settings)

        async def handle_guarded(request: Request) -> Response:
            request.scope[SERVICE] = service
            guarded = Request(request.scope, _limit_body(request.receive, limit, settings))
            try:
                if operation is not None:  # before the body is read, so that refused requests use no memory
                    sender = request.scope[CALLER] = await authenticate_request(service, guarded)
                    request.scope[OPERATION] = operation
                    await sender.check(operation.name, chat_id=named_chat(request))
                _check_encoding(request)
                _check_length(request, limit)
                response = await handle(guarded)
            except TurnwiseError as error:
                response = problem_response(error)
            except ClientDisconnect:
                logger.info("sender_left", path=request.scope["path"])
                response = Response(status_code=400)  # the client is gone
            return _Guarded(response, settings.reader_timeout)

        return handle_guarded


def _as_get(scope: Scope) -> Scope:
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


async def _send_head(answer: Callable[[Send], Awaitable[None]], send: Send) -> None:
    """Send the head of an answer, and cancel the rest: a stream would not end."""
    with anyio.CancelScope() as sending:

        async def send_begin(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body"})
            sending.cancel()
            await anyio.lowlevel.checkpoint()

        await answer(send_begin)


def _other_method(
    method: str, routes: Mapping[Callable[..., Any], RouteSpec], endpoint: Callable[..., Any]
) -> Response:
    """Return the answer to a method that no route of a path has."""
    methods = {route.method for route in routes.values() if route.path == routes[endpoint].path} | {"OPTIONS"}
    allowed = ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
    if method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": allowed})
    return other_problem(405, "Method Not Allowed", f"may be {allowed}; nothing was written", {"Allow": allowed})


def _body_limit(path: str, settings: ServiceSettings) -> int:
    if path in UPLOADS:
        return settings.upload_limit_bytes
    return settings.history_limit_bytes if path in HISTORIES else settings.body_limit_bytes


def _check_encoding(request: Request) -> None:
    encoding = ", ".join(filter(None, request.headers.getlist("content-encoding")))
    if request.method != "GET" and encoding.strip().lower() not in ("", "identity"):
        raise EncodedBody(encoding)


def _check_length(request: Request, limit: int) -> None:
    """Refuse a body whose `Content-Length` is too long, before reading it."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:_MOST_DIGITS]) > limit:
        raise BodyTooLarge(limit)


def _limit_body(receive: Receive, limit: int, settings: ServiceSettings) -> Receive:
    """Wrap `receive`: refuse a body that is too long or arrives too slowly."""
    seen = 0
    waited = 0.0

    async def receive_limited() -> Message:
        nonlocal seen, waited
        allowed = settings.upload_timeout + seen / SLOWEST_BYTES_PER_SECOND
        began = time.monotonic()
        with anyio.move_on_after(min(settings.upload_timeout, allowed - waited)) as in_time:
            message = await receive()
        waited += time.monotonic() - began
        if in_time.cancelled_caught:
            problem = f"the next piece did not come within {settings.upload_timeout:g} s, or all came too slowly"
            raise InvalidRequest([{"field": "body", "problem": problem}])
        seen += len(message.get("body", b""))
        if seen > limit:
            raise BodyTooLarge(limit)
        return message

    return receive_limited


def _in_pieces(message: Message) -> Iterator[Message]:
    """Split a long body, so that the server buffers one piece at a time."""
    body = message.get("body", b"")
    if len(body) > _PIECE:
        for first in range(0, len(body), _PIECE):
            yield {**message, "body": body[first : first + _PIECE], "more_body": True}
        message = {**message, "body": b""}
    yield message


class _Guarded(Response):
    """A response whose reader is cut off if it does not read."""

    def __init__(self, response: Response, timeout: float) -> None:
        self._response, self._timeout = response, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        # One scope whose end is moved: to enter one for each of a stream's pieces takes longer than to send the piece.
        with anyio.CancelScope() as in_time:

            async def send_in_time(message: Message) -> None:
                for piece in _in_pieces(message):
                    in_time.deadline = anyio.current_time() + self._timeout
                    await send(piece)
                    in_time.deadline = math.inf

            await self._response(scope, receive, send_in_time)
        if in_time.cancelled_caught:
            logger.info("reader_cut_off", path=scope["path"], timeout=self._timeout)
