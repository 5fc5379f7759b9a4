"""The processes of a simulation: each runs an engine on the one disk, until it is stopped or killed."""

from __future__ import annotations

import anyio

from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.states.errors import EngineClosed, StoreError
from turnwise.testing.simulation.cast import Cast, WorldParts
from turnwise.testing.simulation.consumer import Consumer
from turnwise.testing.simulation.disk import SimulatedStore
from turnwise.testing.simulation.readers import Subscriber
from turnwise.testing.simulation.witness import Witness


class _MortalEngine(Engine):
    """An engine whose process can die: then no chat is released."""

    _close_timeout = 0

    def die(self) -> None:
        self._worker = None


class SimulatedProcess:
    """One process of a simulation.

    Args:
        name: stands in the trace of the world.
        store: its connection to the disk.
        cast: the model, the agents and their tools.
        parts: what it shares with the world.
        settings: its engine's.
        witness: observes it.
        consumer: gets the events of all chats here, unless it does elsewhere.
    """

    def __init__(  # noqa: PLR0913 - the parts of a world that it uses
        self,
        name: str,
        store: SimulatedStore,
        cast: Cast,
        parts: WorldParts,
        *,
        settings: Settings,
        witness: Witness,
        consumer: Consumer,
    ) -> None:
        self.name = name
        self.store = store
        self._consumer = consumer
        self.engine = _MortalEngine(
            store,
            model=cast.model,
            tools=cast.tools,
            agents=cast.agents,
            deps=cast.deps,
            settings=settings,
            reminders=[parts.faults.remind],
            prepare_messages=parts.faults.prepare_messages,
            observers=[parts.faults.observer, witness],
            clock=parts.clock,
        )
        self.up = anyio.Event()
        self._down = anyio.Event()
        self._scope = anyio.CancelScope()
        self._visits: list[anyio.CancelScope] = []
        """The subscribers that follow a chat here."""

    async def live(self) -> None:
        """Run until the process ends."""
        try:
            with self._scope:
                async with self.engine:
                    self.up.set()
                    await self._consumer.run(self.engine)
        finally:
            self._down.set()

    async def end(self, *, killed: bool) -> None:
        self.store.dead = killed
        for visit in self._visits:
            visit.cancel()
        if killed:
            self.engine.die()
        self._scope.cancel()
        await self._down.wait()

    async def show(self, subscriber: Subscriber) -> bool:
        """Let a subscriber follow its chat here until it leaves or the process ends; return whether it left."""
        left = True
        with anyio.CancelScope() as visit:
            self._visits.append(visit)
            try:
                await subscriber.follow(self.engine)
            except (StoreError, EngineClosed):
                left = False
        self._visits.remove(visit)
        return left
