"""The job of `interrupted` while unsettled: keep the shown part of the reply, close open calls, come to rest."""

from __future__ import annotations

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.jobs.reply import shown_reply
from turnwise.engine.subagents.family import helpers_to_stop
from turnwise.states.triggers import Settled


async def settle(leased: LeasedChat) -> None:
    """Stop the helpers; then commit the partial answer as followers saw it, and a result for every open call."""
    for helper in helpers_to_stop(leased.facts):
        await leased.stop_helper(helper)
    partial = await shown_reply(leased.runtime, leased.facts, leased.attempt)
    async with Sending(leased.runtime.files, leased.chat_id) as sending:
        await leased.fire(Settled(token=leased.token, partial=await sending.partial(partial)))
