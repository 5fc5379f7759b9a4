"""A chat's events as a stream of server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Final, NamedTuple, Protocol

import anyio
import msgspec
from fastapi.sse import KEEPALIVE_COMMENT, ServerSentEvent
from pydantic import SkipValidation
from starlette.responses import StreamingResponse
from starlette.types import Send

from turnwise.engine.config.results import ChatChange
from turnwise.engine.engine import Engine
from turnwise.http_problems import NotAuthenticated
from turnwise.service.problems import build_problem
from turnwise.service.shutdown import open_requests
from turnwise.states.errors import EngineClosed, TurnwiseError
from turnwise.states.events import Event
from turnwise.states.values.checked import checked

RECONNECT_MILLISECONDS: Final = 1000
"""The delay before a client reconnects."""
HEARTBEAT_SECONDS: Final = 15.0
"""The longest silence of an open stream."""
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_GREETING: Final = f": turnwise\nretry: {RECONNECT_MILLISECONDS}\n\n".encode()


class EventFeed(Protocol):
    """A source of events: an engine, or a caller of the service until its token expires."""

    def events(
        self, chat_id: str, *, after: int = 0, follow: bool = True, until_rest: bool = False
    ) -> AsyncGenerator[Event]:
        """Yield a chat's events."""
        ...


class _EventFields(NamedTuple):
    """The fields of one server-sent event; without data, it is the comment `kind`."""

    kind: str
    data: bytes | None
    number: int | None = None


@checked
async def event_stream(
    engine: Engine,
    chat_id: Annotated[str, SkipValidation],
    *,
    after: Annotated[int, SkipValidation] = 0,
    follow: Annotated[bool, SkipValidation] = True,
    until_rest: Annotated[bool, SkipValidation] = False,
) -> AsyncIterator[ServerSentEvent]:
    """Yield a chat's events after number `after`, for a FastAPI route with `response_class=EventSourceResponse`.

    `id` is the event's number, `event` its kind, `data` its JSON, without fields that have their default. Two more
    kinds have no number: `reconnect`, when the service stops, and `problem`, when the chat is gone. The comment `end`
    says that the stream is complete: a stream that ends without any of the three was cut off.
    """
    open_requests(engine).end_with_server()
    yield ServerSentEvent(comment="turnwise", retry=RECONNECT_MILLISECONDS)
    events = engine.events(chat_id, after=after, follow=follow, until_rest=until_rest)
    async with aclosing(_fields(events, after)) as sent:
        async for kind, data, number in sent:
            if data is None:
                yield ServerSentEvent(comment=kind)
            else:
                yield ServerSentEvent(id=None if number is None else str(number), event=kind, raw_data=data.decode())


async def stream_bytes(
    changes: AsyncGenerator[Event] | AsyncGenerator[ChatChange], cursor: int
) -> AsyncGenerator[bytes]:
    """Yield the events of a chat, or the changes of all chats, as bytes: three times as fast as FastAPI writes them.

    Changes are `chat` with the chat, `gone` for a chat that left, and `reset` after a store went back.
    """
    yield _GREETING
    async with aclosing(_fields(changes, cursor)) as sent:
        async for kind, data, number in sent:
            if data is None:
                yield b": %b\n\n" % kind.encode()
            elif number is None:
                yield b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
            else:
                yield b"event: %b\ndata: %b\nid: %d\n\n" % (kind.encode(), data, number)


async def _fields(
    changes: AsyncGenerator[Event] | AsyncGenerator[ChatChange], cursor: int
) -> AsyncGenerator[_EventFields]:
    try:
        async with aclosing(changes) as following:
            async for change in following:
                if isinstance(change, ChatChange):
                    kind = "reset" if not change.chat_id else "gone" if change.chat is None else "chat"
                    cursor = change.number
                else:
                    kind, cursor = change.kind, change.seq
                yield _EventFields(kind, msgspec.json.encode(change), cursor)
        yield _EventFields("end", None)
    except (EngineClosed, NotAuthenticated):
        yield _EventFields("reconnect", json.dumps({"after": cursor}).encode())
    except TurnwiseError as error:
        yield _EventFields("problem", json.dumps(build_problem(error)).encode())


class Stream(StreamingResponse):
    """A response of server-sent events that sends a comment while there is nothing else to send."""

    def __init__(self, pieces: AsyncGenerator[bytes], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(pieces, media_type="text/event-stream", headers={**_HEADERS, **(headers or {})})
        self._pieces = pieces
        self._sent_at = time.monotonic()
        self._is_sending = False

    async def stream_response(self, send: Send) -> None:
        """Send the pieces, and heartbeats between them."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with anyio.create_task_group() as tasks, aclosing(self._pieces) as pieces:
                tasks.start_soon(self._beat, send)
                async for piece in pieces:
                    await self._send(send, piece)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, piece: bytes) -> None:
        self._is_sending = True
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        self._is_sending = False
        self._sent_at = time.monotonic()

    async def _beat(self, send: Send) -> None:
        while True:
            seconds_left = self._sent_at + HEARTBEAT_SECONDS - time.monotonic()
            if seconds_left > 0:
                await anyio.sleep(seconds_left)
            elif self._is_sending:  # to a reader who does not read
                await anyio.sleep(HEARTBEAT_SECONDS)
            else:
                await self._send(send, KEEPALIVE_COMMENT)
