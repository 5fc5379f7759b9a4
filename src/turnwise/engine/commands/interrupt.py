"""An interrupt: a change that may stop a chat, and settles it at once if no worker holds it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.isolation.tasks import run_shielded
from turnwise.engine.jobs.reply import streamed_reply
from turnwise.engine.subagents.family import stop_unless_it_stays, subagents_to_stop
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.identity import is_dead
from turnwise.persistence.protocol import Committed
from turnwise.states.arguments import Partial
from turnwise.states.errors import ChatNotFound, ChatUnreadable, StoreError, TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.triggers import LeaseExpired, Settled


class Interrupter(msgspec.Struct, frozen=True):
    """Interrupts chats, and their subagents, on behalf of an actor."""

    runtime: Runtime
    actor: str

    async def interrupt(self, chat_id: str, change: Change) -> Committed:
        """Make a change that may interrupt. If no live worker holds the chat, settle it in the same transaction.

        Subagents to stop come first, and the chat is settled in another transaction: after a failure in between, a
        worker or the next interrupt settles it.
        """
        return await run_shielded(self._interrupt(chat_id, change))

    async def change_and_stop_subagents(self, chat_id: str, *changes: Change) -> Committed:
        """Make changes after which the chat waits for none of its subagents, and stop those."""
        committed = await self.runtime.writer.change(chat_id, *changes, actor=self.actor)
        if committed.decisions:
            await self.stop_subagents(committed.before)
        return committed

    async def stop_subagents(self, before: Facts) -> None:
        """Stop the subagents that a chat no longer waits for; if this fails, their workers will notice."""
        on_behalf_of_chat = replace(self, actor=f"chat:{before.chat_id}")
        for subagent in subagents_to_stop(before):
            with suppress(ChatNotFound, StoreError):
                await on_behalf_of_chat.interrupt(subagent, stop_unless_it_stays)

    async def _interrupt(self, chat_id: str, change: Change) -> Committed:
        committed = await self._change_and_settle(chat_id, change)
        facts = committed.facts
        if facts.settled or facts.lease is not None:
            return committed
        with suppress(TurnwiseError):
            await self.stop_subagents(facts)
            settled = await self._change_and_settle(chat_id, stopped=subagents_to_stop(facts))
            return replace(committed, facts=settled.facts)
        return committed

    async def _change_and_settle(self, chat_id: str, *changes: Change, stopped: Collection[str] = ()) -> Committed:
        """Make the changes, and settle the chat unless it has other subagents than those that were `stopped`.

        Settling stores the shown part of the attempt, which is read before the transaction. If more was shown in
        between, nothing is changed, and all of it is retried.
        """
        runtime = self.runtime
        async with Sending(runtime.files, chat_id) as sending:
            while True:
                facts = await runtime.store.facts(chat_id)
                settlement = Settlement(facts, await self._token_of_the_dead(facts), stopped)
                if not settlement.is_held(facts):
                    reply = await sending.partial(await streamed_reply(runtime, facts))
                    settlement = replace(settlement, reply=reply)
                plan = settlement.stop_if_outdated, *changes, settlement.settle
                committed = await runtime.writer.change(chat_id, *plan, actor=self.actor)
                if not settlement.is_outdated(committed.before):
                    return committed

    async def _token_of_the_dead(self, facts: Facts) -> int | None:
        """Return the token of a lease that has run out, or whose worker is known to be dead, unless it is ours."""
        lease = facts.lease
        if lease is None or lease.worker == self.runtime.worker_id:
            return None
        if is_dead(lease.worker):
            return lease.token
        with suppress(ChatUnreadable):
            expiry = await self.runtime.store.lease_expiry(facts.chat_id)
            return lease.token if expiry is not None and expiry.is_over else None
        return None


class Settlement(msgspec.Struct, frozen=True):
    """Settles an interrupted chat in the transaction of a change, as the chat was read before."""

    facts: Facts
    dead_token: int | None
    """The token of its lease, if that has ended or its worker is dead."""
    stopped: Collection[str]
    """Subagents that were stopped already."""
    reply: Partial | None = None
    """The shown part of its open attempt, if no live worker holds it."""

    def is_held(self, facts: Facts) -> bool:
        """Whether a live worker holds the chat. One that is thought dead may live: its token lets it write no more."""
        return facts.lease is not None and facts.lease.token != self.dead_token

    def is_outdated(self, facts: Facts) -> bool:
        """Whether no live worker holds the chat, and more of its attempt may have been shown than was read."""
        if self.is_held(facts) or not facts.step.attempt_open:
            return False
        return (facts.version, facts.last_seq) != (self.facts.version, self.facts.last_seq)

    def stop_if_outdated(self, unit: UnitOfWork) -> None:
        """Stop the transaction if more of the attempt was shown meanwhile."""
        if self.is_outdated(unit.facts):
            unit.stopped = True

    def settle(self, unit: UnitOfWork) -> None:
        """Settle what was interrupted, unless a live worker holds the chat, or subagents have to be stopped first."""
        facts = unit.facts
        if facts.settled or self.is_held(facts):
            return
        if facts.lease is not None:
            unit.fire(LeaseExpired(token=facts.lease.token))
        if all(subagent in self.stopped for subagent in subagents_to_stop(facts)):
            unit.fire(Settled(token=None, partial=self.reply))
