"""A chat's events: stored ones, future ones, and their consistency."""

from typing import Any

from turnwise import Engine, Event, fold
from turnwise.states.events import CompactionEvent, PartEvent


async def events_of(engine: Engine, chat_id: str, *kinds: str, after: int = 0) -> list[Event]:
    """Return the chat's events so far, of these kinds or all."""
    events = [event async for event in engine.events(chat_id, after=after, follow=False)]
    return [event for event in events if not kinds or event.kind in kinds]


async def seen(engine: Engine, chat_id: str, kind: str, count: int = 1, **fields: Any) -> Any:
    """Wait for the `count`th event of that kind with those fields, and return it."""
    async for event in engine.events(chat_id):
        if event.kind == kind and all(getattr(event, name) == wanted for name, wanted in fields.items()):
            count -= 1
            if not count:
                return event
    raise AssertionError("a followed chat has no end")


async def shown(engine: Engine, chat_id: str, text: str) -> None:
    """Wait until subscribers see `text` of a running reply."""
    streamed = ""
    async for event in engine.events(chat_id):
        if isinstance(event, PartEvent):
            streamed += event.part.delta or ""
            if text in streamed:
                return


async def phases(engine: Engine, chat_id: str) -> list[str]:
    """Return the phases of the chat's compactions, in order."""
    return [event.phase for event in await events_of(engine, chat_id) if isinstance(event, CompactionEvent)]


async def assert_told_right(engine: Engine, chat_id: str) -> None:
    """Check that the events have no gap and fold to the stored messages."""
    events, chat = await events_of(engine, chat_id), await engine.get_chat(chat_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    transcript = fold(events)
    assert transcript.messages == await engine.messages(chat_id)
    assert (transcript.state or "waiting") == chat.state
    assert transcript.queue == tuple(await engine.queued(chat_id))
    if chat.state in {"waiting", "error", "requires_action", "interrupted"}:
        assert transcript.live == {}
