"""Delivers the events of all chats to a handler: at least once, in order within a chat, from its stored position."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.clock import Clock, sleep
from turnwise.engine.isolation.tasks import run_shielded
from turnwise.engine.isolation.user_code import UserCalls
from turnwise.engine.subscriptions.broadcast import Broadcaster, Subscription
from turnwise.engine.subscriptions.changes import ChangeReader
from turnwise.foreign import described, only_error_in
from turnwise.logger import logger
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.reading import ChangedEvent, ConsumerPosition
from turnwise.states.errors import ChatNotFound, InvalidArgument, StoreError, TurnwiseError
from turnwise.states.events import EVENTS, Event
from turnwise.states.values.plain import shown

Handler = Callable[[Event], Awaitable[object] | object]
"""Takes an event. If it raises, it gets the same event again later."""

DURABLE_KINDS: Final = tuple(sorted(kind for kind, event in EVENTS.items() if not event.fleeting))
"""The kinds of events that consumers get."""
_WINDOW: Final = 1000
"""Chats whose changes are delivered or queued at a time."""
_EVENTS: Final = 100
_RENEWALS: Final = 3
"""Renewals of a lease within its duration."""
_CLOSE_S: Final = 5.0
"""Seconds that storing the position may take at the end."""


MOST_RETRY_AFTER_S: Final = 7200.0
"""The most seconds that a handler may ask for before the next try."""


def check_kinds(kinds: Collection[str]) -> None:
    """Refuse kinds of events that consumers do not get, and none at all.

    Raises:
        InvalidArgument: there is no such kind of event, or it is none that is delivered.
    """
    if not kinds:
        raise InvalidArgument("kinds", "must name a kind of event; leave it out for all kinds")
    for kind in kinds:
        if kind not in DURABLE_KINDS:
            raise InvalidArgument("kinds", f"must be among {', '.join(DURABLE_KINDS)}; one was {shown(kind)}")


class DeliveryRefused(TurnwiseError):
    """A handler's refusal of an event, with directions for the next try."""

    retry_after: float | None = None
    """Seconds until the next try, if they are more than the consumer's own delay; at most two hours count."""
    ends: bool = False
    """Whether to set this event aside and end the deliveries."""


class ConsumerOptions(msgspec.Struct, frozen=True):
    """The options of a consumer."""

    name: str
    handler: Handler
    kinds: Collection[str]
    """The kinds of events; all if it is empty."""
    delays: Sequence[float]
    """Seconds between the tries of one event."""
    parallel: int
    """How many chats' events are handled at a time."""
    from_now: bool


class _LeaseLost(Exception):
    """Another process delivers for the consumer."""


class Deliveries:
    """Delivers for one consumer while it has the lease."""

    def __init__(  # noqa: PLR0913 - the parts of an engine that it uses
        self,
        options: ConsumerOptions,
        store: ChatStore,
        broadcaster: Broadcaster,
        *,
        worker: str,
        settings: Settings,
        clock: Clock,
        user_calls: UserCalls,
    ) -> None:
        self._options = options
        self._store = store
        self._broadcaster = broadcaster
        self._worker = f"{worker}:{id(self):x}"
        self._settings = settings
        self._clock = clock
        self._user_calls = user_calls

    async def run(self) -> None:
        """Deliver until the engine is closed; while another process delivers, wait for its lease to end."""
        with self._broadcaster.listen_to_all() as bell:
            while True:
                held = await self._hold()
                if held is None:  # a transaction: not for every commit
                    asked = self._clock.monotonic()
                    while self._clock.monotonic() - asked < self._settings.poll_interval:
                        await self._wait(bell)
                    continue
                session = _Session(self._options, self._store, held, self._call, partial(sleep, self._clock))
                try:
                    await self._deliver(session, bell, held)
                except _LeaseLost:
                    logger.warning("consumer_lost", consumer=self._options.name)

    async def _hold(self) -> ConsumerPosition | None:
        options = self._options
        try:
            return await self._store.hold_consumer(
                options.name, self._worker, seconds=self._settings.lease, from_now=options.from_now
            )
        except StoreError as error:
            if not error.passing:
                raise
            return None

    async def _deliver(self, session: _Session, bell: Subscription, held: ConsumerPosition) -> None:
        ended: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                try:
                    await self._deliver_on(session, tasks, bell, held)
                except Exception as error:  # noqa: BLE001 - raised below: the group would wrap it
                    ended = error
                tasks.cancel_scope.cancel()
        finally:
            await run_shielded(self._release(held, session))
        if ended is not None:
            raise ended

    async def _deliver_on(
        self, session: _Session, tasks: TaskGroup, bell: Subscription, held: ConsumerPosition
    ) -> None:
        stored, renewed = held.position, self._clock.monotonic()
        while True:
            is_waiting = True
            try:
                is_waiting = not await session.start_deliveries(tasks, bell)
                is_late = self._clock.monotonic() - renewed >= self._settings.lease / _RENEWALS
                if session.position != stored or is_late:
                    await self._advance(held, session.position)
                    stored, renewed = session.position, self._clock.monotonic()
            except StoreError as error:
                if not error.passing:
                    raise
            if session.failure is not None:
                raise session.failure
            if is_waiting:
                await self._wait(bell)

    async def _advance(self, held: ConsumerPosition, position: int) -> None:
        if not await self._store.advance_consumer(
            self._options.name, self._worker, held.token, position=position, seconds=self._settings.lease
        ):
            raise _LeaseLost

    async def _release(self, held: ConsumerPosition, session: _Session) -> None:
        name, token = self._options.name, held.token
        with anyio.move_on_after(_CLOSE_S):
            try:
                session.advance()
                await self._advance(held, session.position)
                await self._store.release_consumer(name, self._worker, token)
            except (StoreError, _LeaseLost) as error:
                logger.debug("consumer_not_released", consumer=name, problem=described(error))

    async def _wait(self, bell: Subscription) -> None:
        timer = self._clock.call_later(self._settings.poll_interval, bell.ring)
        try:
            await bell.wait()
        finally:
            timer.cancel()

    async def _call(self, event: Event) -> None:
        async def handle() -> object:
            answer = self._options.handler(event)
            return await answer if isawaitable(answer) else answer

        await self._user_calls.run(handle, f"consumer {self._options.name}", chat_id=event.chat_id)


class _ChatDeliveries(msgspec.Struct):
    """The deliveries of one chat, one after another."""

    done: int
    """The number of the last commit whose events were delivered, or set aside."""
    wanted: int
    """The number of the last commit whose events shall be delivered."""


class _Session:
    """The deliveries under one lease."""

    def __init__(
        self,
        options: ConsumerOptions,
        store: ChatStore,
        held: ConsumerPosition,
        call: Callable[[Event], Awaitable[None]],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._options = options
        self._store = store
        self._call = call
        self._pause = pause
        self._reader = ChangeReader(store, held.position)
        self._chats: dict[str, _ChatDeliveries] = {}
        self._done: dict[str, int] = {}
        """Chats that were delivered beyond the position."""
        self._again: set[tuple[str, int]] = set()
        self._free = asyncio.Semaphore(options.parallel)
        self.position = held.position
        self._refusal: DeliveryRefused | None = None
        """A refusal that ends the deliveries, once its event is set aside."""
        self.failure: Exception | None = None
        """The error that ends the deliveries."""

    async def start_deliveries(self, tasks: TaskGroup, bell: Subscription) -> bool:
        """Start deliveries of visible events, as far as there is room; return whether there is more to read."""
        again = await self._store.due_again(self._options.name, limit=_WINDOW - len(self._again))
        for chat_id, seq in again:
            if (chat_id, seq) not in self._again:
                self._again.add((chat_id, seq))
                tasks.start_soon(self._run, partial(self._deliver_again, chat_id, seq), bell)
        room = _WINDOW - len(self._chats)
        found = await self._reader.read(room) if room else ()
        if found is None:  # the store went back: all of its events are new
            self._done.clear()
            self.position, found = 0, ()
        for change, _ in found:
            if change.chat is None:
                continue
            chat = self._chats.get(change.chat_id)
            if chat is not None:
                chat.wanted = change.number
            else:
                done = max(self.position, self._done.get(change.chat_id, 0))
                self._chats[change.chat_id] = chat = _ChatDeliveries(done, change.number)
                tasks.start_soon(self._run, partial(self._deliver_changes, change.chat_id, chat), bell)
        self.advance()
        return bool(room) and self._reader.more

    def advance(self) -> None:
        """Move the position up to the first event that is not delivered."""
        self.position = max(self.position, min([self._reader.settled, *(chat.done for chat in self._chats.values())]))
        self._done = {chat_id: done for chat_id, done in self._done.items() if done > self.position}

    async def _run(self, deliver: Callable[[], Awaitable[None]], bell: Subscription) -> None:
        try:
            await deliver()
        except Exception as error:  # noqa: BLE001 - it ends all deliveries
            self.failure = error
        finally:
            bell.ring()

    async def _deliver_changes(self, chat_id: str, chat: _ChatDeliveries) -> None:
        while chat.done < chat.wanted:
            wanted = chat.wanted
            chat.done = max(wanted, await self._deliver_chat(chat_id, chat))
        del self._chats[chat_id]
        self._done[chat_id] = chat.done

    async def _deliver_chat(self, chat_id: str, chat: _ChatDeliveries) -> int:
        """Deliver the visible new events of the chat; return the number of the last commit."""
        after = last = chat.done
        seq = 0
        while True:
            kinds = self._options.kinds
            try:
                page = await self._retried(
                    partial(self._store.changed_events, chat_id, after=after, seq=seq, kinds=kinds, limit=_EVENTS)
                )
            except ChatNotFound:
                return last
            for one in page:
                chat.done, seq, last = max(chat.done, one.number - 1), one.seq, one.number
                error = await self._deliver(one)
                if error is not None:
                    logger.warning(
                        "event_set_aside", consumer=self._options.name, chat_id=chat_id, seq=one.seq, problem=error
                    )
                    await self._retried(partial(self._store.set_aside, self._options.name, chat_id, one.seq, error))
                    self._check_refusal()
            if len(page) < _EVENTS:
                return last

    async def _deliver_again(self, chat_id: str, seq: int) -> None:
        name = self._options.name
        one = await self._retried(partial(self._store.changed_event, chat_id, seq))
        error = None if one is None else await self._deliver(one)
        settle: Callable[[], Awaitable[object]] = partial(self._store.delivered_after_all, name, chat_id, seq)
        if error is not None:
            settle = partial(self._store.set_aside, name, chat_id, seq, error)
        await self._retried(settle)
        self._again.discard((chat_id, seq))
        self._check_refusal()

    def _check_refusal(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def _deliver(self, one: ChangedEvent) -> str | None:
        """Give an event to the handler until it succeeds; return its last error, if it never does."""
        if self._refusal is not None:
            await anyio.sleep_forever()  # until the deliveries have ended
        event, problem, wanted = one.event, None, 0.0
        if isinstance(event, Exception):
            return described(event)
        for delay in (0, *self._options.delays):
            await self._pause(max(delay, wanted))
            try:
                async with self._free:
                    await self._call(event)
            except Exception as error:  # noqa: BLE001 - the event is tried again
                problem = described(error)
                refusal = only_error_in(error)
                if isinstance(refusal, DeliveryRefused):
                    wanted = min(refusal.retry_after or 0.0, MOST_RETRY_AFTER_S)
                    if refusal.ends:
                        self._refusal = refusal
                        return problem
            else:
                return None
        return problem

    async def _retried(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Retry a read or write until the store is back."""
        while True:
            try:
                return await work()
            except StoreError as error:
                if not error.passing:
                    raise
            await self._pause(1)
