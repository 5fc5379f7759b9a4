"""A fake store of one chat, whose events and facts change as the test decides."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import anyio.lowlevel

from support.life import NOW, PROFILE
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.persistence.protocol import ChatStore, Committed
from turnwise.persistence.reading import EventPage
from turnwise.states.events import Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import ChatState


def stands(state: ChatState = ChatState.waiting, *, version: int = 1, last_seq: int = 0, **more: Any) -> Facts:
    known: dict[str, Any] = {"chat_id": "c", "profile": PROFILE, "updated_at": NOW}
    return Facts(**known | more, state=state, version=version, last_seq=last_seq)


class Shelf:
    """The reads of a store for one chat; a test may run code just before each read."""

    def __init__(self, events: Sequence[Event] = (), facts: Facts | None = None) -> None:
        self.stored = list(events)
        self.stand = facts if facts is not None else stands(last_seq=len(self.stored))
        self.broadcaster = Broadcaster()
        self.before_facts: Callable[[], object] = lambda: None
        self.before_events: Callable[[], object] = lambda: None
        self.limits: list[int] = []
        """The limit of each read of events."""
        self.asked = 0
        """The number of reads of facts."""
        self.messages: list[Message] = []
        self.histories = 0
        """The number of reads of the history."""
        self.appended: list[tuple[int, ChatState, tuple[Event, ...]]] = []
        """Batches that running jobs have stored or are about to store."""
        self.storing: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint

    @property
    def store(self) -> ChatStore:
        return cast("ChatStore", self)

    def file_store(self) -> Any:
        """Return nothing: this store has no files."""

    async def events(self, chat_id: str, *, after: int, limit: int) -> EventPage:
        assert chat_id == "c"
        self.limits.append(limit)
        self.before_events()
        page = EventPage([event for event in self.stored if event.seq > after][:limit])
        page.more = len(page) == limit
        return page

    async def facts(self, chat_id: str) -> Facts:
        assert chat_id == "c"
        self.asked += 1
        self.before_facts()
        return self.stand

    async def prompt(self, chat_id: str) -> list[Message]:
        assert chat_id == "c"
        return list(self.messages)

    async def history(
        self, chat_id: str, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        assert (chat_id, at_version, size) == ("c", None, None)
        self.histories += 1
        return [message for message in self.messages if message.position > after]

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        """Store the events of a running job once the test allows it."""
        assert chat_id == "c"
        self.appended.append((token, state, tuple(shown)))
        await self.storing()
        return tuple(shown)

    async def shown(self, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
        """Return the visible parts of an attempt."""
        assert chat_id == "c"
        events = [event for _, _, batch in self.appended for event in batch if isinstance(event, PartEvent)]
        return [event for event in events if (event.step, event.attempt) == (step, attempt)]

    def put(self, facts: Facts, *events: Event) -> Committed:
        """Store a commit of another process; return the notification that this process would send."""
        before, self.stand = self.stand, facts
        self.stored.extend(events)
        return Committed(before=before, facts=facts, decisions=(), events=events, at=NOW)

    def commit(self, facts: Facts, *events: Event) -> None:
        """Store a commit of this process, and publish it."""
        self.committing(facts, *events)()

    def committing(self, facts: Facts, *events: Event) -> Callable[[], None]:
        """Store a commit of this process; return a function that publishes it, perhaps later."""
        latest, notifications = self.broadcaster.latest.of(facts.chat_id), self.broadcaster.notifications
        committed = self.put(facts, *events)
        return lambda: self.broadcaster.publish(committed, latest, notifications=notifications)
