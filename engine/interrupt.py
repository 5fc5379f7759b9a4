"""An interrupt: a change that may stop what a chat is doing, and settles it at once if nobody else will."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from turnwise.engine.apply import Chain, Change
from turnwise.engine.family import helpers_to_stop
from turnwise.engine.files.sending import Sending
from turnwise.engine.reply import shown_reply
from turnwise.engine.runtime import Runtime
from turnwise.persistence.protocol import Committed
from turnwise.states.arguments import Partial
from turnwise.states.facts import Facts
from turnwise.states.triggers import Settled


async def interrupting(
    runtime: Runtime, act: Callable[..., Awaitable[Committed]], chat_id: str, change: Change
) -> Committed:
    """Make a change that may interrupt. If no worker holds the chat, settle it in the same transaction.

    Settling keeps what was shown of the attempt, which is read before the transaction. If more was shown in between,
    nothing is changed, and all of it is tried again.
    """
    async with Sending(runtime.files, chat_id) as sending:
        while True:
            facts = await runtime.store.facts(chat_id)
            reply = await sending.partial(await shown_reply(runtime, facts)) if facts.lease is None else None
            committed = await act(chat_id, partial(_stop_if_outrun, reply), change, partial(_settle, reply))
            if not _has_shown_more(committed.before, reply):
                return committed


def _has_shown_more(facts: Facts, reply: Partial | None) -> bool:
    """Return whether no worker holds the chat and its open attempt is not the one of `reply`."""
    if facts.lease is not None or not facts.step.attempt_open:
        return False
    return reply is None or (reply.step, reply.attempt) != (facts.step.number, facts.step.attempt)


def _stop_if_outrun(reply: Partial | None, chain: Chain) -> None:
    if _has_shown_more(chain.facts, reply):
        chain.stopped = True


def _settle(reply: Partial | None, chain: Chain) -> None:
    """Settle what was interrupted, unless a worker holds the chat, or has to stop its helpers first."""
    facts = chain.facts
    if chain.decisions and not facts.settled and facts.lease is None and not helpers_to_stop(facts):
        chain.fire(Settled(token=None, partial=reply))
