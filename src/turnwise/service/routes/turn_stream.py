"""A turn as a stream of server-sent events, in the protocol of a front end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

from turnwise.http_problems import TYPE, NotAuthenticated
from turnwise.service.caller import Caller
from turnwise.service.problems import problem_of
from turnwise.service.routes.subagent_calls import with_subagent_calls
from turnwise.service.routes.turn_events import TurnRange, events_of
from turnwise.service.sse import EventFeed
from turnwise.states.errors import ChatNotFound, EngineClosed, TurnwiseError
from turnwise.states.events import ErrorEvent, ErrorInfo, Event

_CUTS: Final[Mapping[type[TurnwiseError], str]] = {
    EngineClosed: "the service stops; come back",
    NotAuthenticated: "your token has expired; come back with another",
}


class Encoder(Protocol):
    """Encodes the events of one turn."""

    def encode(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield what an event adds."""
        ...

    def end(self, *, cut: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield what ends the stream."""
        ...


async def lines_of_turns(  # noqa: PLR0913 - what a stream is made of
    source: EventFeed,
    chat_id: str,
    turns: TurnRange,
    encoder: Encoder,
    *,
    first: Iterable[dict[str, Any]] = (),
    last: bytes = b"",
    hold_back: bool = False,
) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream that shows turns.

    Args:
        source: has the chat's events.
        chat_id: the chat.
        turns: which ones.
        encoder: the protocol.
        first: what is sent before the events.
        last: the last line.
        hold_back: for a page that cannot remove text, hold back what a lost worker may have written. It is sent when
            the reply goes on.
    """
    for one in first:
        yield _line(one)
    cut: str | None = None
    try:
        shown = events_of(source, chat_id, turns, hold_back=hold_back)
        if isinstance(source, Caller):  # one who may answer for subagents
            shown = with_subagent_calls(shown, source, chat_id)
        async with aclosing(shown) as events:
            async for event in events:
                for one in encoder.encode(event):
                    yield _line(one)
    except ChatNotFound as error:
        for one in encoder.encode(_gone(error)):
            yield _line(one)
    except TurnwiseError as error:
        cut = _CUTS.get(type(error), "the chat cannot be read now; come back")
    for one in encoder.end(cut=cut):
        yield _line(one)
    if last:
        yield last


def _gone(error: ChatNotFound) -> ErrorEvent:
    """Return the event that says that the chat is gone: a client that reconnects does not get it either."""
    problem = problem_of(error)
    return ErrorEvent(error=ErrorInfo(kind=problem["type"].removeprefix(TYPE), message=problem["detail"]))


def _line(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
