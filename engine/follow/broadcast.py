"""The broadcaster: tells those who wait in this process what was committed. It may lose nothing but time.

Whoever listens can always read the database instead: the broadcaster only spares the reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio

from turnwise.persistence.protocol import Committed
from turnwise.states.errors import EngineClosed
from turnwise.states.events import Event
from turnwise.states.facts import Facts

MAX_BUFFERED = 1000
"""Events a listener may fall behind before it has to read the database."""


class Listener:
    """One reader's place at the broadcaster: a bounded buffer of events, and a bell."""

    def __init__(self) -> None:
        self._bell = anyio.Event()
        self._buffer: deque[Event] = deque()
        self._failure: Exception | None = None
        self._end: str | None = None
        self.behind = True
        """Whether the store may hold events that the broadcaster did not bring; who has read them all says so."""
        self.facts: Facts | None = None
        """Where the chat is, if the last bell said so; else read it from the store."""

    def take(self, after: int) -> list[Event]:
        """Return the buffered events that follow number `after` without a gap; the buffer is empty then."""
        batch: list[Event] = []
        for event in self._buffer:
            if event.seq == after + 1 + len(batch):
                batch.append(event)
            elif event.seq > after:
                self.behind = True
        self._buffer.clear()
        return batch

    async def wait(self) -> None:
        """Wait until something may have happened since the last wait.

        Raises:
            EngineClosed: nothing will be told here any more, and all that was told has been seen.
            Exception: what made this chat impossible to go on with in this process.
        """
        if self._end is not None and not self._bell.is_set():
            raise EngineClosed(self._end)
        await self._bell.wait()
        self._bell = anyio.Event()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def ring(self, events: Sequence[Event] = (), facts: Facts | None = None) -> None:
        """Wake the reader. What was committed first may be told last: the newest facts count."""
        if facts is None or self.facts is None or facts.version > self.facts.version:
            self.facts = facts
        self._buffer.extend(events)
        if len(self._buffer) > MAX_BUFFERED:
            self._buffer.clear()
            self.behind = True
        self._bell.set()

    def hint(self) -> None:
        """Wake the reader: another process may have changed the chat."""
        self.behind = True
        self.ring()

    def fail(self, failure: Exception) -> None:
        """Wake the reader with an error."""
        self._failure = failure
        self._bell.set()

    def end(self, why: str) -> None:
        """Let the reader go, once it has seen what it was told."""
        self._end = why
        self._bell.set()


class Broadcaster:
    """Connects what is committed with who waits for it."""

    def __init__(self) -> None:
        self._listeners: dict[str, dict[Listener, None]] = {}
        self._observers: list[Callable[[Facts], None]] = []
        self.closed: str | None = None
        """Why nobody is told anything any more."""

    def observe(self, observer: Callable[[Facts], None]) -> None:
        """Call `observer` with the facts of every chat that this process changes."""
        self._observers.append(observer)

    @contextmanager
    def listen(self, chat_id: str) -> Iterator[Listener]:
        """Listen to one chat."""
        listener = Listener()
        if self.closed is not None:
            listener.end(self.closed)
        self._listeners.setdefault(chat_id, {})[listener] = None
        try:
            yield listener
        finally:
            listeners = self._listeners[chat_id]
            del listeners[listener]
            if not listeners:
                del self._listeners[chat_id]

    def deliver(self, committed: Committed) -> None:
        """Tell of a transaction."""
        for observer in self._observers:
            observer(committed.facts)
        for listener in self._listeners.get(committed.facts.chat_id, ()):
            listener.ring(committed.events, committed.facts)

    def tell(self, facts: Facts) -> None:
        """Tell of what was read of a chat that another process has changed."""
        for observer in self._observers:
            observer(facts)

    def show(self, chat_id: str, events: Sequence[Event]) -> None:
        """Give stored events to the chat's listeners."""
        for listener in self._listeners.get(chat_id, ()):
            listener.ring(events, listener.facts)

    def hint(self, chat_id: str | None) -> None:
        """Wake the listeners of a chat, or all: another process may have changed something."""
        for known in list(self._listeners) if chat_id is None else [chat_id]:
            for listener in self._listeners.get(known, ()):
                listener.hint()

    def fail(self, chat_id: str, failure: Exception) -> None:
        """Wake the listeners of a chat with an error: its state could not be stored."""
        for listener in self._listeners.get(chat_id, ()):
            listener.fail(failure)

    def close(self, why: str) -> None:
        """Let all listeners go, those that come later too. The first reason stands."""
        if self.closed is not None:
            return
        self.closed = why
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.end(why)
