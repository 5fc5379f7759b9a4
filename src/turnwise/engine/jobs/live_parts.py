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
    If storing fails, `on_failure` is called with the error.
    """

    def __init__(self, leased: LeasedChat, builder: ReplyBuilder, on_failure: Callable[[Exception], object]) -> None:
        self._leased = leased
        self._builder = builder
        self._on_failure = on_failure
        self._step = leased.facts.step.number
        self._attempt = leased.facts.step.attempt
        self._timer: asyncio.TimerHandle | None = None
        self._flush_done: asyncio.Event | None = None
        """Set once the current batch is stored; `None` while none is being stored."""
        self._closed = False
        self._unpublished: list[PartEvent] = []
        self.failure: Exception | None = None
        """The error that prevented parts from being stored."""

    def schedule_flush(self) -> None:
        """Store the builder's new deltas once the window ends; call it after each change of the builder."""
        if self._timer is None and self._flush_done is None:
            # Real time also with a test's clock: nothing promises when parts are shown.
            window = self._leased.configuration.settings.coalesce
            begin = self._leased.runtime.tasks.start_soon
            self._timer = asyncio.get_running_loop().call_later(window, begin, self._store)

    def cancel(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def drain(self) -> None:
        """Show nothing more, and wait for the batch that is being stored: the partial reply is read after it."""
        self.cancel()
        if self._flush_done is not None:
            await self._flush_done.wait()

    async def drain_remaining(self) -> list[PartEvent]:
        """Show nothing more, wait for the batch that is being stored, and return the events that were not shown.

        The caller stores them with the commit that ends the attempt. Idempotent: if the caller has to choose another
        commit, calling again returns the same events. Raises the error that prevented parts from being stored.
        """
        await self.drain()
        if self.failure is not None:
            raise self.failure
        self._unpublished += self._events()
        return self._unpublished

    async def _store(self) -> None:
        """Store the gathered parts, then show them."""
        self._timer = None
        if self._closed:
            return
        self._flush_done = stored = asyncio.Event()
        try:
            leased, events, token = self._leased, self._events(), self._leased.token
            await leased.retry_while_unavailable(partial(leased.show, ChatState.streaming, events, token=token))
        except Exception as failure:  # noqa: BLE001 - it ends the attempt, which reports it
            self.failure = failure
            self._closed = True
            self._on_failure(failure)
        finally:
            self._flush_done = None
            stored.set()
        if self._builder.has_news:
            self.schedule_flush()

    def _events(self) -> list[PartEvent]:
        return [
            PartEvent(step=self._step, attempt=self._attempt, index=index, part=part)
            for index, part in self._builder.take_shown()
        ]
