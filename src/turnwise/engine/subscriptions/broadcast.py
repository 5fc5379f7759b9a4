"""The broadcaster: passes commits to the subscribers in this process.

It only saves reads: a subscriber that it did not reach reads the database, and loses nothing. A new subscriber of a
running chat gets the latest events from a cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from turnwise.persistence.protocol import Committed
from turnwise.states import triggers as t
from turnwise.states.errors import EngineClosed
from turnwise.states.events import Event, size_of_event
from turnwise.states.facts import Facts
from turnwise.states.values.values import unshared

_VERSIONS: Final = 4096
"""Chats whose newest published version is known: commits of one chat are published shortly one after another."""
MAX_BUFFERED = 1000
"""Events that are buffered for a subscription; one that falls further behind reads the database."""
MAX_BUFFERED_BYTES: Final = 1_048_576
"""The bytes of those events: a subscription with more of them reads the database, too."""


_CHATS: Final = 1024
_EVENTS: Final = 16
_LARGEST: Final = 16_384
"""Bytes of the largest event that is cached; a larger one is read from the store."""

Latest = deque[Event]
"""The last events of one chat, without a gap."""


class LatestEvents:
    """Caches the last events of the chats that this process has changed last, until others may have changed them."""

    def __init__(self) -> None:
        self._chats: OrderedDict[str, Latest] = OrderedDict()

    def of(self, chat_id: str) -> Latest:
        """Return the cached events of a chat. Take it before events are stored, to `add` them afterwards."""
        events = self._chats.setdefault(chat_id, deque(maxlen=_EVENTS))
        self._chats.move_to_end(chat_id)
        if len(self._chats) > _CHATS:
            self._chats.popitem(last=False)
        return events

    def add(self, chat_id: str, events: Sequence[Event], latest: Latest) -> None:
        """Cache stored events, in any order; forget the chat if it was forgotten meanwhile.

        The reason may have been a notification of a later commit, and no second notification will come.
        """
        if self._chats.get(chat_id) is not latest:
            self.forget(chat_id)
            return
        for event in events:
            if latest and event.seq > latest[-1].seq + 1:
                latest.clear()
            if size_of_event(event) > _LARGEST:
                latest.clear()
                continue
            if not latest or event.seq > latest[-1].seq:
                latest.append(event)

    def after(self, chat_id: str, number: int) -> list[Event]:
        """Return the events after this number; none if there may be a gap."""
        latest = self._chats.get(chat_id)
        if not latest or latest[0].seq > number + 1:
            return []
        return [event for event in latest if event.seq > number]

    def forget(self, chat_id: str | None) -> None:
        if chat_id is None:
            self._chats.clear()
        else:
            self._chats.pop(chat_id, None)


class Subscription:
    """One subscriber: a bounded buffer of events, and a bell that wakes it. With `at_once` it never waits."""

    def __init__(self, notifications: int = 0, *, at_once: bool = False) -> None:
        self._notifications = notifications
        self._at_once = at_once
        self._bell = asyncio.Event()
        self._buffer: deque[Event] = deque()
        self._buffered_bytes = 0
        self._failure: Exception | None = None
        self._end: str | None = None
        self.behind = True
        """Whether the store may hold events that the broadcaster did not pass on; the reader resets it."""
        self.facts: Facts | None = None
        """The chat's facts, if the last bell brought them; else the reader asks the store."""

    def take(self, after: int, last: Event | None = None) -> list[Event]:
        """Take copies of the buffered events that follow number `after` without a gap, and empty the buffer.

        If another event has the number of the `last` one, the reader is behind: the store went back.
        """
        batch: list[Event] = []
        for event in self._buffer:
            if last is not None and event.seq == last.seq and (event.kind, event.at) != (last.kind, last.at):
                self.behind = True
            elif event.seq == after + 1 + len(batch):
                batch.append(unshared(event))
            elif event.seq > after:
                self.behind = True
        self._empty()
        return batch

    async def wait(self) -> None:
        """Wait for the bell; raise `EngineClosed`, `TimeoutError`, or the error of `fail`."""
        if self._end is not None and not self._bell.is_set():
            raise EngineClosed(self._end, waited=True)
        if self._at_once and not self._bell.is_set():
            raise TimeoutError
        await self._bell.wait()
        self._bell = asyncio.Event()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def ring(self, events: Sequence[Event] = (), facts: Facts | None = None) -> None:
        """Wake the reader, unless its wait was ended. Commits may arrive out of order; the newest facts count."""
        if self._end is not None:
            return  # or a reader slower than the model would go on until the turn ends
        if facts is None or self.facts is None or facts.version > self.facts.version:
            self.facts = facts
        self._buffer.extend(events)
        self._buffered_bytes += sum(map(size_of_event, events))
        if len(self._buffer) > MAX_BUFFERED or self._buffered_bytes > MAX_BUFFERED_BYTES:
            self._empty()
            self.behind = True
        self._bell.set()

    def _empty(self) -> None:
        self._buffer.clear()
        self._buffered_bytes = 0

    def notify(self, notifications: int) -> None:
        """Wake the reader, at that number of `Broadcaster.notifications`: another process may have changed the chat."""
        self._notifications = notifications
        self.behind |= self._end is None
        self.ring()

    def was_notified_since(self, notifications: int) -> bool:
        """Whether it got a notification, or began, after that number of notifications."""
        return self._notifications > notifications

    def fail(self, failure: Exception) -> None:
        self._failure = failure
        self._bell.set()

    def end(self, why: str) -> None:
        """End the reader's wait with `EngineClosed`, once it has seen all earlier events."""
        self._end = why
        self._bell.set()


class Broadcaster:
    """Passes commits to the subscriptions of their chats."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, dict[Subscription, None]] = {}
        self._of_all: dict[Subscription, None] = {}
        """The subscriptions to all chats."""
        self._observers: list[Callable[[Facts], None]] = []
        self._forgetters: list[Callable[[str], None]] = []
        self.latest = LatestEvents()
        """The cache for new subscriptions."""
        self._versions: OrderedDict[str, int] = OrderedDict()
        """The newest version that was published of each chat."""
        self.notifications = 0
        """The number of notifications so far."""
        self.closed: str | None = None
        """Why the broadcaster was closed; `None` while it is open."""

    def observe(self, observer: Callable[[Facts], None], *, forget: Callable[[str], None] | None = None) -> None:
        """Call `observer` with the facts of every changed chat, and `forget` with the id of every deleted one."""
        self._observers.append(observer)
        if forget is not None:
            self._forgetters.append(forget)

    @contextmanager
    def listen(self, chat_id: str, *, after: int | None = None, at_once: bool = False) -> Iterator[Subscription]:
        """Subscribe to one chat. If events after number `after` are cached, it is not `behind`."""
        subscription = Subscription(self.notifications, at_once=at_once)
        latest = [] if after is None else self.latest.after(chat_id, after)
        if latest:
            subscription.ring(latest)
            subscription.behind = False
        if self.closed is not None:
            subscription.end(self.closed)
        self._subscriptions.setdefault(chat_id, {})[subscription] = None
        try:
            yield subscription
        finally:
            subscriptions = self._subscriptions[chat_id]
            del subscriptions[subscription]
            if not subscriptions:
                del self._subscriptions[chat_id]

    @contextmanager
    def listen_to_all(self) -> Iterator[Subscription]:
        """Subscribe to all chats: any change wakes the subscription, without events."""
        subscription = Subscription(self.notifications)
        if self.closed is not None:
            subscription.end(self.closed)
        self._of_all[subscription] = None
        try:
            yield subscription
        finally:
            del self._of_all[subscription]

    def wake_all(self) -> None:
        for subscription in self._of_all:
            subscription.ring()

    def publish(self, committed: Committed, latest: Latest | None = None, *, notifications: int) -> None:
        """Pass on a commit, with `latest` (`None`: no cache) and `notifications` as they were before it began.

        A subscription that got a notification meanwhile reads the facts from the store: another process may have
        committed later. So do all subscriptions if a later commit was published before.
        """
        facts = committed.facts
        is_late = self._is_late(facts)
        rests = facts.resting and committed.before.version > 0
        erased = any(decision.trigger is t.MessageErased for decision in committed.decisions)
        if latest is None or rests or erased:
            self.latest.forget(facts.chat_id)
        else:
            self.latest.add(facts.chat_id, committed.events, latest)
        self.publish_facts(facts)
        for subscription in self._subscriptions.get(facts.chat_id, ()):
            subscription.ring(
                committed.events, None if is_late or subscription.was_notified_since(notifications) else facts
            )
        self.wake_all()

    def _is_late(self, facts: Facts) -> bool:
        """Whether a later version of the chat was published before, and remember the newest."""
        newest = self._versions.pop(facts.chat_id, 0)
        self._versions[facts.chat_id] = max(newest, facts.version)
        if len(self._versions) > _VERSIONS:
            self._versions.popitem(last=False)
        return newest > facts.version

    def publish_facts(self, facts: Facts) -> None:
        for observer in self._observers:
            observer(facts)

    def show(self, chat_id: str, events: Sequence[Event], latest: Latest) -> None:
        """Give stored events to the chat's subscriptions, and cache them; `latest` as in `publish`."""
        self.latest.add(chat_id, events, latest)
        for subscription in self._subscriptions.get(chat_id, ()):
            subscription.ring(events, subscription.facts)

    def notify(self, chat_id: str | None) -> None:
        """Wake the subscriptions of a chat, or all, after a notification of another process."""
        self.latest.forget(chat_id)
        self.notifications += 1
        for name in list(self._subscriptions) if chat_id is None else [chat_id]:
            for subscription in self._subscriptions.get(name, ()):
                subscription.notify(self.notifications)
        self.wake_all()

    def forget(self, chat_id: str) -> None:
        """Wake the subscriptions of a chat that was deleted: they read the store, which raises `ChatDeleted`."""
        for forget in self._forgetters:
            forget(chat_id)
        self._versions.pop(chat_id, None)
        self.notify(chat_id)

    def rewind(self, facts: Facts) -> None:
        """Forget later facts of a chat than these: the store took them back. Its subscriptions read again."""
        self._versions[facts.chat_id] = facts.version
        self.notify(facts.chat_id)

    def fail(self, chat_id: str, failure: Exception) -> None:
        """Wake the subscriptions of a chat with an error: its state could not be stored."""
        for subscription in self._subscriptions.get(chat_id, ()):
            subscription.fail(failure)

    def close(self, why: str) -> None:
        """End all subscriptions, and those that come later. The first reason stands."""
        if self.closed is not None:
            return
        self.closed = why
        for subscriptions in (*self._subscriptions.values(), self._of_all):
            for subscription in subscriptions:
                subscription.end(why)
