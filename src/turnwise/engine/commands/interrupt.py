"""An interrupt: a change that may stop what a chat is doing, and settles it at once if nobody else will."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.jobs.reply import shown_reply
from turnwise.engine.subagents.family import subagents_to_stop
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker.identity import is_dead
from turnwise.persistence.protocol import Committed
from turnwise.states.arguments import Partial
from turnwise.states.errors import ChatUnreadable, TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.triggers import LeaseExpired, Settled

Act = Callable[..., Awaitable[Committed]]
"""Makes changes of a chat in one transaction."""


async def interrupting(
    runtime: Runtime, act: Act, chat_id: str, change: Change, *, stop_subagents: Callable[[Facts], Awaitable[None]]
) -> Committed:
    """Make a change that may interrupt. If no live worker holds the chat, settle it in the same transaction.

    If it has subagents to stop, those come first, and it is settled in another one: what is cut off in between, or
    fails, is left to a worker, or to whoever interrupts it again.
    """
    committed = await _interrupt(runtime, act, chat_id, change)
    facts = committed.facts
    if facts.settled or facts.lease is not None:
        return committed
    with suppress(TurnwiseError):
        await stop_subagents(facts)
        settled = await _interrupt(runtime, act, chat_id, stopped=subagents_to_stop(facts))
        return replace(committed, facts=settled.facts)
    return committed


async def _interrupt(
    runtime: Runtime, act: Act, chat_id: str, *changes: Change, stopped: Collection[str] = ()
) -> Committed:
    """Make the changes, and settle the chat unless it has other subagents than those that were `stopped`.

    Settling keeps what was shown of the attempt, which is read before the transaction. If more was shown in between,
    nothing is changed, and all of it is tried again.
    """
    async with Sending(runtime.files, chat_id) as sending:
        while True:
            facts = await runtime.store.facts(chat_id)
            read = _Read(facts, await _token_of_the_dead(runtime, facts))
            if not read.is_held(facts):
                read = replace(read, reply=await sending.partial(await shown_reply(runtime, facts)))
            settle = partial(_settle, read, stopped)
            committed = await act(chat_id, partial(_stop_if_outrun, read), *changes, settle)
            if not read.is_outrun(committed.before):
                return committed


class _Read(msgspec.Struct, frozen=True):
    """What was read of a chat before the transaction."""

    facts: Facts
    given_up: int | None
    """The token of its lease, if nobody renews that any more."""
    reply: Partial | None = None
    """What was shown of its open attempt, if no live worker holds it."""

    def is_held(self, facts: Facts) -> bool:
        """Whether a live worker holds the chat. One that is thought dead may live: its token lets it write no more."""
        return facts.lease is not None and facts.lease.token != self.given_up

    def is_outrun(self, facts: Facts) -> bool:
        """Whether no live worker holds the chat, and more of its attempt may have been shown than was read."""
        if self.is_held(facts) or not facts.step.attempt_open:
            return False
        return (facts.version, facts.last_seq) != (self.facts.version, self.facts.last_seq)


async def _token_of_the_dead(runtime: Runtime, facts: Facts) -> int | None:
    """Return the token of a lease that has run out, or whose worker is known to be dead; never of one of our own."""
    lease = facts.lease
    if lease is None or lease.worker == runtime.worker_id:
        return None
    if is_dead(lease.worker):
        return lease.token
    with suppress(ChatUnreadable):
        expiry = await runtime.store.lease_expiry(facts.chat_id)
        return lease.token if expiry is not None and expiry.is_over else None
    return None


def _stop_if_outrun(read: _Read, unit: UnitOfWork) -> None:
    if read.is_outrun(unit.facts):
        unit.stopped = True


def _settle(read: _Read, stopped: Collection[str], unit: UnitOfWork) -> None:
    """Settle what was interrupted, unless a live worker holds the chat, or subagents have to be stopped first."""
    facts = unit.facts
    if facts.settled or read.is_held(facts):
        return
    if facts.lease is not None:
        unit.fire(LeaseExpired(token=facts.lease.token))
    if all(subagent in stopped for subagent in subagents_to_stop(facts)):
        unit.fire(Settled(token=None, partial=read.reply))
