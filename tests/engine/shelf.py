"""A chat's events and facts as a reader of the store finds them, moment by moment as a test has it."""

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
    """Return the facts of a chat that stands there."""
    known: dict[str, Any] = {"chat_id": "c", "profile": PROFILE, "updated_at": NOW}
    return Facts(**known | more, state=state, version=version, last_seq=last_seq)


class Shelf:
    """What a reader asks of a store, for one chat; a test may let something happen just before each look."""

    def __init__(self, events: Sequence[Event] = (), facts: Facts | None = None) -> None:
        self.stored = list(events)
        self.stand = facts if facts is not None else stands(last_seq=len(self.stored))
        self.broadcaster = Broadcaster()
        self.before_facts: Callable[[], object] = lambda: None
        self.before_events: Callable[[], object] = lambda: None
        self.limits: list[int] = []
        """How many events each look asked for at most."""
        self.asked = 0
        """How often the facts were asked for."""
        self.messages: list[Message] = []
        self.histories = 0
        """How often the history was asked for."""
        self.appended: list[tuple[int, ChatState, tuple[Event, ...]]] = []
        """What running jobs have stored, or are about to."""
        self.storing: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint

    @property
    def store(self) -> ChatStore:
        """The store, as a reader is given it."""
        return cast("ChatStore", self)

    def file_store(self) -> Any:
        """Return nothing: no file is kept on a shelf."""

    async def events(self, chat_id: str, *, after: int, limit: int) -> EventPage:
        """Return the next events, as a store does."""
        assert chat_id == "c"
        self.limits.append(limit)
        self.before_events()
        page = EventPage([event for event in self.stored if event.seq > after][:limit])
        page.more = len(page) == limit
        return page

    async def facts(self, chat_id: str) -> Facts:
        """Return where the chat stands, as a store does."""
        assert chat_id == "c"
        self.asked += 1
        self.before_facts()
        return self.stand

    async def prompt(self, chat_id: str) -> list[Message]:
        """Return what the model sees, as a store does."""
        assert chat_id == "c"
        return list(self.messages)

    async def history(
        self, chat_id: str, *, at_version: int | None = None, after: int = 0, size: int | None = None
    ) -> list[Message]:
        """Return the whole history, as a store does."""
        assert (chat_id, at_version, size) == ("c", None, None)
        self.histories += 1
        return [message for message in self.messages if message.position > after]

    async def append_events(
        self, chat_id: str, token: int, state: ChatState, shown: Sequence[Event], *, worker: str | None = None
    ) -> tuple[Event, ...]:
        """Note the events of a running job, once the test lets them go, as a store does."""
        assert chat_id == "c"
        self.appended.append((token, state, tuple(shown)))
        await self.storing()
        return tuple(shown)

    async def shown(self, chat_id: str, step: int, attempt: int) -> list[PartEvent]:
        """Return what subscribers were shown of an attempt, as a store does."""
        assert chat_id == "c"
        events = [event for _, _, batch in self.appended for event in batch if isinstance(event, PartEvent)]
        return [event for event in events if (event.step, event.attempt) == (step, attempt)]

    def put(self, facts: Facts, *events: Event) -> Committed:
        """Store what another process committed; return it as this process would tell it."""
        before, self.stand = self.stand, facts
        self.stored.extend(events)
        return Committed(before=before, facts=facts, decisions=(), events=events, at=NOW)

    def commit(self, facts: Facts, *events: Event) -> None:
        """Store what this process committed, and tell its readers."""
        self.committing(facts, *events)()

    def committing(self, facts: Facts, *events: Event) -> Callable[[], None]:
        """Store what this process committed; return what tells its readers, perhaps a while later."""
        latest, notifications = self.broadcaster.latest.of(facts.chat_id), self.broadcaster.notifications
        committed = self.put(facts, *events)
        return lambda: self.broadcaster.publish(committed, latest, notifications=notifications)
