"""The subscribers of a simulation: they follow a chat on any process, are cut off, and continue from their cursor."""

from __future__ import annotations

from random import Random

from turnwise.engine.engine import Engine
from turnwise.engine.prompt.views import user_view
from turnwise.states.events import Event
from turnwise.states.transcript import fold
from turnwise.testing.simulation.checks import Stored, problems_of_parts


class Subscriber:
    """Follows one chat, and keeps every event it was shown."""

    def __init__(self, chat_id: str, random: Random) -> None:
        self.chat_id = chat_id
        self._random = random
        self._seen: list[Event] = []

    @property
    def cursor(self) -> int:
        """The number of the last event it was shown."""
        return self._seen[-1].seq if self._seen else 0

    async def follow(self, engine: Engine) -> None:
        """Keep the events that come, and leave when the seed says so."""
        async for event in engine.events(self.chat_id, after=self.cursor):
            self._seen.append(event)
            if self._random.random() < 0.05:
                return

    def problems(self, chat: Stored, *, pruned: bool) -> list[str]:
        """Return where what it was shown is not what is stored, once it has caught up; parts may have been `pruned`."""
        stored, cursor, problems = chat.events, self.cursor, []
        left = {event.seq for event in stored}
        seen = [event for event in self._seen if event.seq in left or not (pruned and event.kind == "part")]
        if not chat.erased and seen != [event for event in stored if event.seq <= cursor]:
            problems.append("a subscriber was shown other events than are stored")
        whole = [*self._seen, *(event for event in stored if event.seq > cursor)]
        problems += [f"to a subscriber, {problem}" for problem in problems_of_parts(whole, gaps=pruned or chat.erased)]
        transcript = fold(whole)
        if transcript.messages != user_view(chat.history):
            problems.append("what a subscriber was shown does not fold to the history")
        return [f"{self.chat_id}: {problem}" for problem in problems]
