"""The job of `interrupted` while unsettled: keep what was shown, close what is open, come to rest."""

from __future__ import annotations

from turnwise.engine.jobs.reply import shown_reply
from turnwise.engine.worker.leased_chat import LeasedChat
from turnwise.states.triggers import Settled


async def settle(hold: LeasedChat) -> None:
    """Commit the partial answer as subscribers saw it, and a result for every open call."""
    partial = await shown_reply(hold.desk.store, hold.facts, hold.desk.toolbox, hold.heard, origin=hold.origin)
    await hold.fire(lambda chain: chain.fire(Settled(token=hold.token, partial=partial)))
