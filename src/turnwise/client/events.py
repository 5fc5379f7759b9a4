"""A chat's events as a service streams them: read, and read on after every interruption."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import Any, Final

import httpx
import msgspec

from turnwise.client.connection import Connection, is_passing
from turnwise.client.errors import BadAnswer, parse_problem
from turnwise.client.requests import Request
from turnwise.client.settings import Backoff
from turnwise.engine.config.results import Chat, ChatChange
from turnwise.http_problems import RateLimited
from turnwise.states.errors import EngineClosed, TurnwiseError
from turnwise.states.events import Event, HistoryResetEvent
from turnwise.states.names import RESTING, ChatState

_EVENT: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)
_CHANGE: Final = msgspec.json.Decoder(ChatChange)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_END: Final = b" end"
"""The comment by which a service says that the stream is complete."""
_MEDIA_TYPE: Final = "text/event-stream"
_STOPS: Final = "the service stops; the stream goes on after the last event, once there is one again"


class EventReader(msgspec.Struct):
    """Reads the events of a chat, and reconnects after the last event."""

    connection: Connection
    path: str
    cursor: int
    follow: bool
    until_rest: bool
    _has_ended: bool = False
    """Whether the service has ended the stream."""

    async def events(self) -> AsyncGenerator[Any, None]:
        """Yield the events, each once and in order, across connections."""
        backoff = Backoff(self.connection.settings)
        while True:
            at_least = 0.0
            try:
                async with aclosing(self._once(backoff)) as events:
                    async for event in events:
                        self.cursor = self._number_of(event)
                        backoff.reset()
                        yield event
                if self._has_ended or await self._is_over():
                    return
                broken: TurnwiseError = self.connection.fault(httpx.ReadError("the stream ends early"), sent=False)
            except TurnwiseError as error:
                if not is_passing(error) or not self.connection.is_open:
                    raise
                broken, at_least = error, error.retry_after if isinstance(error, RateLimited) else 0.0
            if not await backoff.wait(at_least):
                raise broken

    async def _is_over(self) -> bool:
        """Whether a stream that ended without an end event has nothing left to read.

        The service may send no end events, or a proxy may have hidden that the stream was cut.
        """
        if self.follow and not self.until_rest:
            return False
        request = Request(method="GET", path=self.path.removesuffix("/events"), repeatable=True)
        chat = await self.connection.ask(request, Chat)
        return chat.last_seq <= self.cursor and (not self.follow or has_arrived(RESTING, chat))

    def _query(self) -> dict[str, Any]:
        return {"follow": _word(self.follow), "until_rest": _word(self.until_rest)}

    def _decoded(self, data: bytes) -> Any:
        return _EVENT.decode(data)

    def _number_of(self, event: Any) -> int:
        number: int = event.seq
        return number

    def _is_new(self, event: Any) -> bool:
        return event.seq > self.cursor or (isinstance(event, HistoryResetEvent) and event.begins_anew)

    async def _once(self, backoff: Backoff) -> AsyncGenerator[Any, None]:
        """Yield the events of one response, after `cursor`."""
        connection = self.connection
        request = Request(method="GET", path=self.path, query={"after": self.cursor, **self._query()})
        began = time.monotonic()
        async with connection.opened(request, idle_timeout=connection.settings.idle_timeout) as response:
            url = str(response.url)
            if not response.headers.get("content-type", "").startswith(_MEDIA_TYPE):
                raise BadAnswer(url, f"no stream of events, but {response.headers.get('content-type')!r}")
            try:
                async for kind, data in _server_sent_events(response):
                    if kind == "reconnect":
                        raise EngineClosed(_STOPS, waited=True)
                    if kind == "end":
                        self._has_ended = True
                        return
                    if kind == "problem":
                        raise parse_problem(url, _OBJECT.decode(data))
                    event = self._decoded(data)
                    if self._is_new(event):
                        yield event
            except httpx.HTTPError as error:
                raise connection.fault(error, sent=False) from error
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadAnswer(url, f"an event that cannot be read ({error!s:.100})") from error
            finally:
                if time.monotonic() - began > connection.settings.max_delay:
                    backoff.reset()  # the stream was open, though quiet


class ChangesReader(EventReader):
    """Reads the changes in all chats of a service, and reconnects after the last change."""

    owner: str | None = None
    agent: str | None = None

    def _query(self) -> dict[str, Any]:
        return {"follow": _word(self.follow), "owner": self.owner, "agent": self.agent}

    def _decoded(self, data: bytes) -> Any:
        return _CHANGE.decode(data)

    def _number_of(self, event: Any) -> int:
        number: int = event.number
        return number

    def _is_new(self, event: Any) -> bool:  # noqa: ARG002 - a change holds the present chat
        return True

    async def _is_over(self) -> bool:
        return not self.follow


def has_arrived(states: Collection[ChatState], chat: Chat) -> bool:
    """Whether a chat stays in one of these states."""
    if chat.unreadable is not None or (chat.state is ChatState.interrupted and not chat.settled):
        return False
    return chat.state in states and not (states == RESTING and chat.awaits == "subagents")


async def _server_sent_events(response: httpx.Response) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the kind and the data of each server-sent event; `end` for the comment ` end`."""
    kind, data, rest = "", b"", b""
    async for piece in response.aiter_bytes():
        # Not `aiter_lines`: to Python a line may end within the text of an event.
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            match name:
                case b"event":
                    kind = value.removeprefix(b" ").decode()
                case b"data":
                    data += value.removeprefix(b" ")
                case b"" if value == _END:
                    yield "end", b""
                case b"" if not line.strip():
                    if kind and data:
                        yield kind, data
                    kind, data = "", b""


def _word(value: bool) -> str:  # noqa: FBT001 - a query's value
    return "true" if value else "false"
