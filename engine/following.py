"""Following a chat: its events as they come, and its coming to rest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from turnwise.engine.hub import Hub
from turnwise.persistence.protocol import ChatStore
from turnwise.states.events import Event
from turnwise.states.facts import Facts

EVENTS_PER_READ = 500


async def follow(store: ChatStore, hub: Hub, chat_id: str, *, after: int, live: bool) -> AsyncGenerator[Event, None]:
    """Yield the chat's events after number `after`, in order, all that are kept; go on with what comes if `live`.

    Raises:
        ChatNotFound: there is no such chat.

    A reader may be as slow as it likes: it then reads from the store what the hub did not keep.
    """
    cursor = after
    with hub.listen(chat_id) as listener:
        while True:
            if listener.behind:
                listener.behind = False
                batch = await store.events(chat_id, after=cursor, limit=EVENTS_PER_READ)
                listener.behind |= len(batch) == EVENTS_PER_READ
            else:
                batch = listener.take(cursor)
            for event in batch:
                yield event
                cursor = event.seq
            if batch or listener.behind:
                continue
            if cursor == after:
                await store.facts(chat_id)
            if not live:
                return
            await listener.wait()


async def wait_for(store: ChatStore, hub: Hub, chat_id: str, arrived: Callable[[Facts], bool]) -> Facts:
    """Return the facts of the chat as soon as they are as wanted."""
    with hub.listen(chat_id) as listener:
        facts = await store.facts(chat_id)
        while not arrived(facts):
            await listener.wait()
            facts = listener.facts or await store.facts(chat_id)
        return facts
