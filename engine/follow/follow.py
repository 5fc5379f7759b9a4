"""Follows a chat: yields its events as they come, and waits for a state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager

from turnwise.engine.follow.broadcast import Broadcaster
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import EngineClosed, StoreError
from turnwise.states.events import Event
from turnwise.states.facts import Facts

EVENTS_PER_READ = 500


async def follow(  # noqa: PLR0913 - what a follower may want
    store: ChatStore,
    broadcaster: Broadcaster,
    chat_id: str,
    *,
    after: int,
    live: bool,
    until_rest: bool = False,
    at_once: bool = False,
) -> AsyncGenerator[Event, None]:
    """Yield the chat's stored events after number `after`, in order; if `live`, go on with new ones.

    With `until_rest` it ends once the chat rests and all its events are yielded. With `at_once` it does not wait.

    A reader may be as slow as it likes: what the broadcaster did not keep for it is read from the store.

    Raises:
        ChatNotFound: there is no such chat.
        EngineClosed: the engine was closed, or released its followers; all events before that were yielded.
        TimeoutError: with `at_once`, it would have to wait.
    """
    cursor, looked_again = after, 0
    batch: Sequence[Event]
    with (
        _ended_by(broadcaster),
        broadcaster.listen(chat_id, after=after if live else None, at_once=at_once) as listener,
    ):
        while True:
            if listener.behind:
                listener.behind = False
                batch = page = await store.events(chat_id, after=cursor, limit=EVENTS_PER_READ)
                listener.behind |= page.more
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
            if until_rest:
                facts = listener.facts or await store.facts(chat_id)
                if facts.resting and (facts.last_seq <= cursor or facts.version == looked_again):
                    return
                if facts.resting:  # it came to rest since the events were read
                    looked_again, listener.behind = facts.version, True
                    continue
            await listener.wait()


async def wait_for(
    store: ChatStore, broadcaster: Broadcaster, chat_id: str, arrived: Callable[[Facts], bool], *, at_once: bool = False
) -> Facts:
    """Return the facts of the chat as soon as `arrived` is true of them; with `at_once` it does not wait.

    Raises:
        ChatNotFound: there is no such chat.
        EngineClosed: the engine was closed, or released its followers, before that.
        TimeoutError: with `at_once`, it would have to wait.
    """
    with _ended_by(broadcaster), broadcaster.listen(chat_id, at_once=at_once) as listener:
        facts = await store.facts(chat_id)
        while not arrived(facts):
            await listener.wait()
            facts = listener.facts or await store.facts(chat_id)
        return facts


@contextmanager
def _ended_by(broadcaster: Broadcaster) -> Iterator[None]:
    """Replace the `StoreError` of a store that was closed under a reader by the reason why it was closed."""
    try:
        yield
    except StoreError as error:
        if broadcaster.closed is None:
            raise
        raise EngineClosed(broadcaster.closed, waited=True) from error
