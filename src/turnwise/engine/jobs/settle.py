"""The job of `interrupted` while unsettled: keep the shown part of the reply, close open calls, come to rest."""

from __future__ import annotations

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.jobs.reply import shown_reply
from turnwise.engine.subagents.family import subagents_to_stop
from turnwise.engine.subagents.subagents import stop_subagent
from turnwise.states.triggers import Settled


class SettleJob:
    """Brings an interrupted chat to rest."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def run(self) -> None:
        """Stop the subagents; then commit the partial answer as subscribers saw it, and results for all open calls."""
        leased = self._leased
        for subagent in subagents_to_stop(leased.facts):
            await stop_subagent(leased.runtime, subagent)
        partial = await shown_reply(leased.runtime, leased.facts, leased.attempt)
        async with Sending(leased.runtime.files, leased.chat_id) as sending:
            await leased.fire(Settled(token=leased.token, partial=await sending.partial(partial)))
