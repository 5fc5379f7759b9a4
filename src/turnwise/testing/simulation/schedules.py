"""What clients of a simulation have the clock send, and whether each of its times has sent one message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random
from typing import Any, Final

from turnwise.engine.engine import Engine
from turnwise.states import triggers as t
from turnwise.states.messages import Message, QueuedMessage
from turnwise.states.names import WhenDue
from turnwise.states.writes import DropSchedule, FireSchedule
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation.checks import StoredRows

LIMIT: Final = 2
"""Scheduled messages of a chat."""
_FAR_S: Final = 1000
"""Seconds: what is due later is taken back at the end."""


class Schedules:
    """The clients that schedule messages, and what was accepted."""

    def __init__(self, random: Random, clock: ManualClock) -> None:
        self._random = random
        self._clock = clock
        self._serial = 0
        self._accepted: dict[str, WhenDue] = {}
        """What becomes of each scheduled message while its chat works, by id: no id is given twice."""
        self.met: Counter[str] = Counter()
        """How often each check had something to look at."""

    @property
    def deeds(self) -> list[Callable[[Engine, str], Any]]:
        return [*[self.schedule] * 5, self.unschedule]

    async def schedule(self, engine: Engine, chat_id: str) -> None:
        """Schedule a message, which is due at once, soon or later, or a series."""
        self._serial += 1
        name, every = f"s{self._serial}", self._random.choice([None, None, "* * * * *"])
        at = None if every else self._clock.now() + timedelta(seconds=self._random.choice([0, 20, 90, 300]))
        when_busy: WhenDue = self._random.choice(["queue", "steer", "skip"])
        await engine.schedule(chat_id, f"due {self._serial}.", at=at, every=every, when_busy=when_busy, id=name)
        self._accepted[name] = when_busy

    async def unschedule(self, engine: Engine, chat_id: str) -> None:
        for message in (await engine.schedules(chat_id))[:1]:
            await engine.unschedule(chat_id, message.id)

    async def run_out(self, engine: Engine, chat_id: str) -> bool:
        """Take back series and what is due much later; return whether something is left that can be sent."""
        messages = await engine.schedules(chat_id)
        far = self._clock.now() + timedelta(seconds=_FAR_S)
        for message in messages:
            if message.every or message.due > far:
                await engine.unschedule(chat_id, message.id)
                return True
        return bool(messages)

    def problems(self, chat: StoredRows) -> Iterator[str]:
        """Yield where a time has sent no message, or two. A full queue may keep what is due waiting."""
        messages: list[Message | QueuedMessage] = [*chat.history, *chat.facts.queue]
        sent = Counter(one.wakeup for one in messages if one.wakeup is not None)
        self.met["sent"] += len(sent)
        for wakeup, times in sent.items():
            if times > 1:
                yield f"{wakeup} has sent {times} messages"
        fired = Counter((write.id, write.digest) for _, write in _writes(chat, FireSchedule.kind))
        self.met["fired"] += len(fired)
        for (name, _), times in fired.items():
            if times > 1:
                yield f"the scheduled message {name} was due {times} times at one time"
        yield from self._lost(chat, {wakeup.schedule for wakeup in sent})

    def _lost(self, chat: StoredRows, sent: set[str]) -> Iterator[str]:
        """Yield what was due once, and was neither sent nor skipped; edits and clients remove messages."""
        edited = max((record.version for record in chat.records if record.trigger == t.EditMessage.name), default=0)
        deleted = {write.id for _, write in _writes(chat, "dequeue:deleted")}
        once = {write.id for _, write in _writes(chat, DropSchedule.kind)}
        for record, write in _writes(chat, FireSchedule.kind):
            removed = record.version <= edited or any(one.id in deleted for one in record.writes)
            is_ours = write.id in once and self._accepted.get(write.id, "skip") != "skip"
            if is_ours and not removed and write.id not in sent:
                yield f"the scheduled message {write.id} was due, and was not sent"


def _writes(chat: StoredRows, kind: str) -> Iterator[tuple[Any, Any]]:
    return ((record, write) for record in chat.records for write in record.writes if write.kind == kind)
