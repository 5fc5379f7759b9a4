"""The connection to a service: requests, answers and their faults."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import cache
from typing import Any, Final, TypeVar, cast

import httpx
import pydantic_core
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from turnwise.client.errors import BUSY, BadAnswer, ServiceFailed, ServiceUnreachable, parse_error, parse_problem
from turnwise.client.requests import InterruptibleBody, Request
from turnwise.client.settings import Backoff, ClientSettings
from turnwise.http_problems import ON_BEHALF_OF, PROBLEM_AFTER, NotAllowed, NotAuthenticated, RateLimited
from turnwise.states.errors import (
    EngineClosed,
    EngineInUse,
    InvalidArgument,
    SettingsError,
    StoreError,
    TurnwiseError,
)
from turnwise.states.values.plain import shown

Answer = TypeVar("Answer")

_NOT_OPEN: Final = "the client is not open; use it inside 'async with Client(...)'"
_CLOSED: Final = "the client was closed"
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors before a request is sent."""
_OK: Final = range(200, 300)
_ARGUMENTS: Final = {"Idempotency-Key": "client_id", "Content-Type": "media_type", ON_BEHALF_OF: "actor"}
"""The arguments that headers carry."""
_NOTHING: Final = "; nothing was written"
"""Removed from the text of an error if the request was sent before."""
_UNKNOWN: Final = "; it is not known whether anything was written"


@cache
def _ssl_context() -> ssl.SSLContext:
    """Return the certificates that clients trust. Reading them blocks the event loop for 20 ms: it is done once."""
    return httpx.create_ssl_context()


class Connection:
    """A connection to one service."""

    def __init__(self, url: str, token: str, settings: ClientSettings) -> None:
        self.url = url
        self.settings = settings
        self._token = token
        self._client: httpx.AsyncClient | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._client is not None

    async def open(self) -> None:
        """Prepare to send, without sending."""
        if self._client is not None:
            raise EngineInUse
        try:
            trusted = _ssl_context()
        except OSError as error:
            raise SettingsError("SSL_CERT_FILE, SSL_CERT_DIR", f"cannot be read: {error}") from error
        try:
            self._client = httpx.AsyncClient(
                base_url=self.url,
                headers={"Authorization": f"Bearer {self._token}"},
                limits=httpx.Limits(max_keepalive_connections=20),  # and any number while they are in use
                verify=trusted,
            )
        except (ValueError, ImportError, httpx.InvalidURL):  # its text may hold the password of the proxy
            problem = "name a proxy that cannot be used: it must be like http://proxy.example.com:3128"
            raise SettingsError("HTTP_PROXY, HTTPS_PROXY, ALL_PROXY", problem) from None

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ask(self, request: Request, answer: type[Answer]) -> Answer:
        """Return the answer to a request, read as a value of the type `answer`, or raise the service's error."""
        return self.read(await self.response_to(request), answer)

    async def response_to(self, request: Request, *, sent: bool = False) -> httpx.Response:
        """Return the successful response to a request; `sent` if it was sent before, and may have been applied."""
        backoff = Backoff(self.settings)
        while True:
            try:
                async with self.opened(request) as response:
                    await self._whole(response, request)
                    return response
            except TurnwiseError as error:
                sent = sent or _may_have_been_applied(error, request)
                pause = error.retry_after if isinstance(error, RateLimited) else 0
                if self.is_open and _may_pass(error, request, sent=sent) and await backoff.wait(pause):
                    continue
                if sent and not self.is_open and is_passing(error):
                    raise ServiceUnreachable(self.url, _CLOSED, sent=True) from error
                if sent and self.leaves_open(error):
                    raise self.unanswered(error) from error
                raise

    def leaves_open(self, error: TurnwiseError) -> bool:
        """Whether the outcome of an earlier request stays unknown: the token may have expired meanwhile, too."""
        return self.is_open and (is_passing(error) or isinstance(error, NotAuthenticated | NotAllowed))

    def unanswered(self, error: TurnwiseError) -> ServiceUnreachable:
        """Return the error for a request that may have been applied although the last answer was `error`."""
        if isinstance(error, ServiceUnreachable):
            return ServiceUnreachable(error.url, error.problem, sent=True)
        words = str(error).removesuffix(_NOTHING).removesuffix(_UNKNOWN)
        return ServiceUnreachable(self.url, f"it says {words!r}", sent=True)

    def read(self, response: httpx.Response, answer: type[Answer]) -> Answer:
        """Return the value in a response, or raise `BadAnswer`."""
        try:
            value: Answer = _answer_adapter(cast("Any", answer)).validate_json(response.content or b"null")
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, wrong["loc"]))
            raise BadAnswer(str(response.url), f"{place}: {wrong['msg']}" if place else wrong["msg"]) from None
        except Exception as error:
            raise BadAnswer(str(response.url), f"its answer cannot be read ({type(error).__name__})") from error
        return value

    @asynccontextmanager
    async def opened(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[httpx.Response]:
        """Send a request once and give its response, with the body unread, or raise the service's error.

        `idle_timeout` are the seconds to wait for the next piece of the body; `ClientSettings.timeout` by default.
        """
        if self._client is None:
            raise EngineClosed(_NOT_OPEN)
        built = self._build_request(self._client, request, idle_timeout)
        try:
            response = await self._client.send(built, stream=True)
        except httpx.HTTPError as error:
            raise self.fault(error, sent=_may_have_been_sent(error, request)) from error
        try:
            if response.status_code not in _OK:
                body = await self._whole(response, request)
                raise parse_error(
                    str(response.url), response.status_code, response.headers.get("content-type", ""), body
                )
            yield response
        finally:
            await response.aclose()

    def fault(self, error: httpx.HTTPError, *, sent: bool) -> TurnwiseError:
        """Return the error for an answer that did not come, or not all of it."""
        if self.is_open:
            return ServiceUnreachable(self.url, str(error) or type(error).__name__, sent=sent)
        return ServiceUnreachable(self.url, _CLOSED, sent=True) if sent else EngineClosed(_CLOSED, waited=True)

    async def _whole(self, response: httpx.Response, request: Request) -> bytes:
        try:
            return await response.aread()
        except httpx.HTTPError as error:
            raise self.fault(error, sent=_may_have_been_sent(error, request)) from error

    def _build_request(self, client: httpx.AsyncClient, request: Request, idle_timeout: float | None) -> httpx.Request:
        headers = {name: _check_header(name, value) for name, value in request.headers.items() if value is not None}
        content: Any = request.stream
        if request.body is not None:
            content = pydantic_core.to_json(request.body)
            headers["Content-Type"] = "application/json"
        limit, connect = self.settings.timeout, self.settings.connect_timeout
        try:
            return client.build_request(
                request.method,
                request.path,
                params={name: value for name, value in request.query.items() if value is not None},
                headers=headers,
                content=content,
                timeout=httpx.Timeout(
                    limit, connect=min(limit, connect), read=limit if idle_timeout is None else idle_timeout
                ),
            )
        except httpx.InvalidURL as error:
            raise InvalidArgument(
                "arguments", f"must fit into an address, which these do not ({error}): ids are shorter"
            ) from None


class ActingConnection(Connection):
    """A connection whose requests are on behalf of an actor: a view of another, which opens and closes it."""

    def __init__(self, connection: Connection, actor: str) -> None:
        self.url = connection.url
        self.settings = connection.settings
        self._connection = connection
        self._actor = actor

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._connection.is_open

    @asynccontextmanager
    async def opened(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[httpx.Response]:
        """Give the response to a request, see `Connection.opened`."""
        acting = replace(request, headers={**request.headers, ON_BEHALF_OF: self._actor})
        async with self._connection.opened(acting, idle_timeout=idle_timeout) as response:
            yield response


async def read_pieces(connection: Connection, request: Request) -> AsyncIterator[bytes]:
    """Yield the body of a response, piece by piece.

    Raises:
        TurnwiseError: what the service says is wrong, also at the end of a body that it breaks off for that.
    """
    async with connection.opened(request) as response, aclosing(response.aiter_bytes()) as pieces:  # type: ignore[type-var]
        body = InterruptibleBody(response.headers.get(PROBLEM_AFTER, ""))
        cut: httpx.HTTPError | None = None
        try:
            async for piece in pieces:
                if content := body.content(piece):
                    yield content
        except httpx.HTTPError as error:
            cut = error
        if body.problem is not None:  # also behind a clean end, which a proxy may make of a body that was cut off
            raise parse_problem(str(response.url), body.problem) from cut
        if body.rest:
            yield body.rest
        if cut is not None:
            raise connection.fault(cut, sent=False) from cut


def is_passing(error: TurnwiseError) -> bool:
    """Whether the error is temporary, so that a retry may succeed."""
    if isinstance(error, ServiceFailed):
        return error.status in BUSY
    return isinstance(error, ServiceUnreachable | EngineClosed | RateLimited) or type(error) is StoreError


def _may_pass(error: TurnwiseError, request: Request, *, sent: bool) -> bool:
    is_too_much = isinstance(error, RateLimited) and not (sent or request.waits_out_limits)
    if is_too_much or not is_passing(error):
        return False
    if isinstance(error, ServiceUnreachable) and not error.sent:
        return request.stream is None
    return request.repeatable


def _check_header(header: str, value: str) -> str:
    if not (value and value.isascii() and value.isprintable() and value == value.strip()):
        named = _ARGUMENTS.get(header, header)
        problem = "must be printable ASCII and not empty, because a header of HTTP carries it"
        raise InvalidArgument(named, f"{problem}; it was {shown(value)}")
    return value


def _may_have_been_applied(error: TurnwiseError, request: Request) -> bool:
    """Whether the service may have applied the request, although it answered with this error."""
    if isinstance(error, StoreError):
        return error.written == "unknown" and request.method != "GET"
    return isinstance(error, ServiceUnreachable) and error.sent


def _may_have_been_sent(error: httpx.HTTPError, request: Request) -> bool:
    return request.method != "GET" and not isinstance(error, _UNSENT)


@cache
def _answer_adapter(answer: Any) -> TypeAdapter[Any]:
    return TypeAdapter(answer)
