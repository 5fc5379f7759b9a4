"""A chat's events as a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import msgspec
from fastapi.sse import ServerSentEvent

from turnwise.engine.engine import Engine
from turnwise.service.problems import problem_of
from turnwise.states.errors import EngineClosed, TurnwiseError

RECONNECT_MILLISECONDS: Final = 1000
"""When a reader whose stream has ended comes back."""


async def event_stream(
    engine: Engine, chat_id: str, *, after: int = 0, follow: bool = True, until_rest: bool = False
) -> AsyncIterator[ServerSentEvent]:
    """Yield a chat's events after number `after`, for a FastAPI route with `response_class=EventSourceResponse`.

    `id` is the event's number, `event` its kind, `data` its JSON, without fields that have their default. Two more
    kinds have no number: `reconnect`, when the service stops, and `problem`, when the chat is gone.
    """
    yield ServerSentEvent(comment="turnwise", retry=RECONNECT_MILLISECONDS)
    cursor = after
    try:
        async with aclosing(engine.events(chat_id, after=after, follow=follow, until_rest=until_rest)) as events:
            async for event in events:
                cursor = event.seq
                yield ServerSentEvent(id=str(cursor), event=event.kind, raw_data=msgspec.json.encode(event).decode())
    except EngineClosed:
        yield ServerSentEvent(event="reconnect", raw_data=json.dumps({"after": cursor}), retry=RECONNECT_MILLISECONDS)
    except TurnwiseError as error:
        yield ServerSentEvent(event="problem", raw_data=json.dumps(problem_of(error)))
