"""Stores and shows the parts of a reply while it streams, in small batches, without holding the stream up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.providers.reply_builder import ReplyBuilder
from turnwise.states.events import PartEvent
from turnwise.states.names import ChatState


class LiveParts:
    """Stores the parts of one attempt, then shows them to subscribers, with adjacent deltas joined.

    The first delta opens a window of `Settings.coalesce` seconds; all deltas that come in it are stored together.
    If that fails, the attempt is to `end` with the error.
    """

    def __init__(self, leased: LeasedChat, builder: ReplyBuilder, end: Callable[[Exception], object]) -> None:
        self._leased = leased
        self._builder = builder
        self._end = end
        self._step = leased.facts.step.number
        self._attempt = leased.facts.step.attempt
        self._window: asyncio.TimerHandle | None = None
        self._stored: asyncio.Event | None = None
        """Set once the batch that is being stored is stored; `None` while none is."""
        self._closed = False
        self._rest: list[PartEvent] = []
        """What was never shown."""
        self.failure: Exception | None = None
        """Why parts could not be stored."""

    def changed(self) -> None:
        """Note that the builder has something to show."""
        if self._window is None and self._stored is None:
            # Real time even where a test moves the clock by hand: nothing promises when parts are shown.
            window = self._leased.configuration.settings.coalesce
            begin = self._leased.runtime.tasks.start_soon
            self._window = asyncio.get_running_loop().call_later(window, begin, self._store)

    def stop(self) -> None:
        """Show nothing more."""
        self._closed = True
        if self._window is not None:
            self._window.cancel()

    async def end(self) -> None:
        """Show nothing more, and wait for the batch that is being stored: the partial reply is read after it."""
        self.stop()
        if self._stored is not None:
            await self._stored.wait()

    async def close(self) -> list[PartEvent]:
        """Show nothing more, wait for the batch that is being stored, and return the events that were not shown.

        The caller stores them with the commit that ends the attempt: if that is another one than it meant, it asks
        again, and gets the same. Raises the error that prevented parts from being stored.
        """
        await self.end()
        if self.failure is not None:
            raise self.failure
        self._rest += self._events()
        return self._rest

    async def _store(self) -> None:
        """Store the gathered parts, then show them."""
        self._window = None
        if self._closed:
            return
        self._stored = stored = asyncio.Event()
        try:
            leased, events, token = self._leased, self._events(), self._leased.token
            await leased.retry_while_unavailable(partial(leased.show, ChatState.streaming, events, token=token))
        except Exception as failure:  # noqa: BLE001 - it ends the attempt, which reports it
            self.failure = failure
            self._closed = True
            self._end(failure)
        finally:
            self._stored = None
            stored.set()
        if self._builder.has_news:
            self.changed()

    def _events(self) -> list[PartEvent]:
        return [
            PartEvent(step=self._step, attempt=self._attempt, index=index, part=part)
            for index, part in self._builder.take_shown()
        ]
