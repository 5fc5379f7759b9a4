"""The inspection of a simulated world that has come to rest: its chats, their families, the list, and the outside."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from turnwise.engine.engine import Engine
from turnwise.engine.subagents.verification import verify_family
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import FileNotFound, TurnwiseError
from turnwise.states.events import ErrorEvent, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import FilePart
from turnwise.testing.simulation.actors import Outside
from turnwise.testing.simulation.checks import EVENTS, StoredRows, problems_in, stored_of
from turnwise.testing.simulation.clients import NAME, Clients
from turnwise.testing.simulation.consumer import Consumer
from turnwise.testing.simulation.disk import Disk
from turnwise.testing.simulation.faults import CONTAINED, blame
from turnwise.testing.simulation.readers import Subscriber, problems_of_readings

AGES = 1_000_000.0
"""Seconds: more than a world lives."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at, and what is known of it."""

    disk: Disk
    store: ChatStore
    engine: Engine
    clients: Clients
    subscribers: Sequence[Subscriber]
    consumer: Consumer
    outside: Outside
    victim: str
    """The chat whose rows are damaged: of it is only asked that it harms no other."""
    pruned: bool
    """Whether parts of old replies may be gone."""

    async def problems(self) -> list[str]:
        """Return every promise that is broken, in words."""
        problems: list[str] = []
        for chat_id in self.clients.chats:
            chat = await stored_of(self.store, chat_id)
            problems += problems_in(chat, pruned=self.pruned)
            problems += await self._problems_of_family(chat.facts)
            problems += self._problems_of_witnesses(chat_id, chat)
            problems += _problems_of_errors(chat)
            growth = [*self.clients.schedules.problems(chat)]
            growth += self.consumer.problems(chat)
            problems += [f"{chat_id}: {problem}" for problem in growth]
            problems += self._problems_of_erasure(chat_id)
            problems += [problem async for problem in self._problems_of_files(chat)]
        problems += [problem async for problem in self.clients.budgets.problems(self.store)]
        problems += await self._problems_of_the_list()
        problems += await self._problems_of_pruning()
        return [*problems, *self.clients.problems, *self._problems_outside()]

    def _problems_of_witnesses(self, chat_id: str, chat: StoredRows) -> Iterator[str]:
        """Yield where what clients and subscribers saw of a chat is not what is stored."""
        readings = self.clients.readings
        yield from problems_of_readings(readings, chat_id, chat.events, pruned=self.pruned, erased=chat.erased)
        stored_ids = [message.id for message in chat.history] + [queued.id for queued in chat.facts.queue]
        for message_id in self.clients.still_wanted(chat_id, chat.records):
            if stored_ids.count(message_id) != 1:
                yield f"{chat_id}: message {message_id} was accepted and is stored {stored_ids.count(message_id)} times"
        title = chat.facts.profile.title
        if chat_id in self.clients.named and not chat.erased and not str(title).startswith(NAME):
            yield f"{chat_id}: the title is {title!r}, which is none that a client gave"
        for subscriber in (one for one in self.subscribers if one.chat_id == chat_id):
            yield from subscriber.problems(chat, pruned=self.pruned)

    def _problems_of_erasure(self, chat_id: str) -> Iterator[str]:
        """Yield where words of a chat are stored that a client erased. Its title may quote them."""
        words = [word for of_chat, word in self.clients.unsaid if of_chat == chat_id]
        for table, row in self.disk.rows_of(chat_id) if words else ():
            if table != "profiles":
                yield from (f"{chat_id}: {word!r} was erased; {table} holds {row}" for word in words if word in row)

    async def _problems_of_files(self, chat: StoredRows) -> AsyncIterator[str]:
        """Yield which files of messages are gone."""
        for message in chat.history:
            for part in message.parts:
                if isinstance(part, FilePart) and part.blob is not None and not message.erased:
                    try:
                        async for _ in self.engine.open_file(chat.facts.chat_id, part.blob):
                            pass
                    except FileNotFound as error:
                        yield f"{chat.facts.chat_id}: the file of message {message.id} is lost: {error}"

    async def _problems_of_family(self, facts: Facts) -> list[str]:
        """Return what is wrong with the family of a chat; a subagent's is looked at with that of the chat it helps."""
        chat_id, profile = facts.chat_id, facts.profile
        is_looked_at = profile.parent_call is not None and profile.parent in self.clients.chats
        if is_looked_at or self.victim in {profile.parent, chat_id}:
            return []
        verdict = await verify_family(self.store, chat_id)
        return [] if verdict.ok else [f"{chat_id}: its family does not verify: {verdict.problem}"]

    async def _problems_of_the_list(self) -> list[str]:
        """Return whether a chat is not listed; questions about the damaged one may raise only `TurnwiseError`s."""
        listed = {chat.id for chat in (await self.engine.list_chats(limit=100)).items}
        missing = {*self.clients.chats, self.victim} - listed
        engine = self.engine
        for question in (engine.get_chat, engine.messages, engine.explain, engine.audit, engine.verify):
            with contextlib.suppress(TurnwiseError):
                await question(self.victim)
        return [f"the list of chats leaves out {sorted(missing)}"] if missing else []

    async def _problems_of_pruning(self) -> list[str]:
        """Prune what is over; return which chats still have parts of it."""
        after: str | None = ""
        while after is not None:
            after = (await self.store.prune(keep=-AGES, after=after, limit=1000)).after
        problems: list[str] = []
        for chat_id in self.clients.chats:
            over = (await self.store.facts(chat_id)).step.over_before
            events = await self.store.events(chat_id, after=0, limit=EVENTS)
            if any(isinstance(event, PartEvent) and (event.step, event.attempt) < over for event in events):
                problems.append(f"{chat_id}: parts of replies that are over are not pruned")
        return problems

    def _problems_outside(self) -> Iterator[str]:
        """Yield what was done twice outside, or should not have been."""
        for call, count in self.outside.payments.items():
            if count > 1 and call[0] != self.victim:
                yield f"{call} was paid {count} times"
        for attempt, count in self.outside.attempts.items():
            if count > 1 and attempt[0] != self.victim:
                yield f"the model was asked {count} times for {attempt}"
        for fault in self.outside.faults:
            if self.victim not in fault:
                yield fault


def _problems_of_errors(chat: StoredRows) -> Iterator[str]:
    """Yield where a chat ended in an error that should not have reached it, or only as the result of a call."""
    for event in chat.events:
        for component in CONTAINED:
            if isinstance(event, ErrorEvent) and blame(component) in event.error.message:
                yield f"{chat.facts.chat_id}: its turn failed with what was {blame(component)}"
