"""Follows a chat: yields its events, and waits for a state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio

from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.reading import EventPage
from turnwise.states.errors import EngineClosed, StoreError
from turnwise.states.events import Event, HistoryResetEvent, size_of_event
from turnwise.states.facts import Facts

EVENTS_PER_READ = 500
_SMALL_BYTES = 16_384
"""The largest event that is read again to detect a store that went back."""


async def follow(  # noqa: PLR0913 - what a subscriber may want
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

    With `until_rest` it ends once the chat rests and all its events are yielded. With `at_once` it raises
    `TimeoutError` instead of waiting. A slow reader reads the events from the store that its buffer has dropped.

    If the store went back behind an event that was yielded, a `history_reset` of number 0 comes, then all events again.
    """
    cursor, looked_again = after, 0
    last: Event | None = None
    batch: Sequence[Event] | None
    with (
        explain_closing(broadcaster),
        broadcaster.listen(chat_id, after=after if live else None, at_once=at_once) as subscription,
    ):
        while True:
            if subscription.behind:
                subscription.behind = False
                batch = page = await _next_page(store, chat_id, cursor, last)
                subscription.behind |= page is None or page.more
            else:
                batch = subscription.take(cursor, last)
            if batch is None:
                cursor, last = 0, None
                yield HistoryResetEvent(chat_id=chat_id, first_removed="")
                continue
            for event in batch:
                yield event
                cursor, last = event.seq, event
            if batch or subscription.behind:
                continue
            if not live:
                return
            if until_rest:
                facts = subscription.facts or await store.facts(chat_id)
                if facts.resting and (facts.last_seq <= cursor or facts.version == looked_again):
                    return
                if facts.resting:  # since the events were read
                    looked_again, subscription.behind = facts.version, True
                    continue
            await subscription.wait()


async def _next_page(store: ChatStore, chat_id: str, cursor: int, last: Event | None) -> EventPage | None:
    """Return the events after a number; `None` if the store went back behind it.

    A small last event is read again, and must be the same.
    """
    again = last is not None and size_of_event(last) <= _SMALL_BYTES
    page = await store.events(chat_id, after=cursor - again, limit=EVENTS_PER_READ)
    if last is not None and again and page and page[0].seq == cursor:
        if (page[0].kind, page[0].at) != (last.kind, last.at):
            return None
        rest = EventPage(page[1:])
        rest.more = page.more
        return rest
    if not page and (await store.facts(chat_id)).last_seq < cursor:
        return None
    return page


async def wait_for(
    store: ChatStore, broadcaster: Broadcaster, chat_id: str, arrived: Callable[[Facts], bool], *, at_once: bool = False
) -> Facts:
    """Return the facts of the chat once `arrived` is true for them; with `at_once`, raise `TimeoutError` if not yet."""
    with explain_closing(broadcaster), broadcaster.listen(chat_id, at_once=at_once) as subscription:
        facts = await store.facts(chat_id)
        while not arrived(facts):
            await subscription.wait()
            facts = subscription.facts or await store.facts(chat_id)
        return facts


@contextmanager
def explain_closing(broadcaster: Broadcaster) -> Iterator[None]:
    """Replace the `StoreError` of a closed store by `EngineClosed` with its reason."""
    try:
        yield
    except StoreError as error:
        if broadcaster.closed is None:
            raise
        raise EngineClosed(broadcaster.closed, waited=True) from error


_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


Notify = Callable[[str | None], Awaitable[None]]
"""Takes a notification: the id of a chat that may have changed, or `None` for "some chat"."""


async def watch(store: ChatStore, broadcaster: Broadcaster, notify: Notify) -> None:
    """Pass the store's notifications on to the subscriptions and to the worker.

    They only save time, so a failure is logged once, and the watch begins again after a growing pause.
    """
    pause, failing = _FIRST_PAUSE, False
    while True:
        try:
            async for chat_id in store.watch():
                pause, failing = _FIRST_PAUSE, False
                await _pass_on(chat_id, broadcaster, notify)
        except Exception as error:  # noqa: BLE001 - as below
            if not failing:
                logger.warning("watch_failed", problem=described(error))
            failing = True
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        await _pass_on(None, broadcaster, notify)  # notifications meanwhile are lost


async def _pass_on(chat_id: str | None, broadcaster: Broadcaster, notify: Notify) -> None:
    broadcaster.notify(chat_id)
    try:
        await notify(chat_id)
    except Exception as error:  # noqa: BLE001 - a failed notification must not end the engine
        logger.debug("notification_failed", chat_id=chat_id, problem=described(error))
