"""How a chat ends before its turn does: an interrupt is settled, and an error is stored, with the shown reply."""

from __future__ import annotations

from functools import partial

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.jobs.reply import error_info, shown_reply
from turnwise.engine.subagents.family import subagents_to_stop
from turnwise.engine.subagents.subagents import stop_subagent
from turnwise.logger import logger
from turnwise.states.errors import StaleLease, StoreError, TurnwiseError
from turnwise.states.triggers import Failed, Settled


class SettleJob:
    """Brings an interrupted chat to rest."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def run(self) -> None:
        """Stop the subagents; then commit the partial answer as subscribers saw it, and results for all open calls."""
        leased = self._leased
        for subagent in subagents_to_stop(leased.facts):
            await stop_subagent(leased.runtime, subagent)
        reply = await shown_reply(leased.runtime, leased.facts, leased.attempt)
        async with Sending(leased.runtime.files, leased.chat_id) as sending:
            await leased.fire(Settled(token=leased.token, partial=await sending.partial(reply)))


class Failure:
    """Ends a chat in `error`, because of a defect or of what user code raised."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def commit(self, error: BaseException) -> None:
        """End the chat in `error`: with the shown part of the reply, or without it if that cannot be stored either."""
        leased = self._leased
        info = error_info(error, leased.facts.step, leased.configuration.settings)
        try:
            try:
                reply = await leased.retry_while_unavailable(
                    partial(shown_reply, leased.runtime, leased.facts, leased.attempt)
                )
                async with Sending(leased.runtime.files, leased.chat_id) as sending:
                    reply = await sending.partial(reply)
                    await leased.fire(Failed(token=leased.token, error=info, partial=reply))
            except (ConcurrentTransition, StaleLease):
                raise
            except Exception:  # noqa: BLE001 - the reply itself may be what no store takes
                logger.exception("partial_reply_not_stored")
                await leased.fire(Failed(token=leased.token, error=info, takes_back=True))
        except ConcurrentTransition:
            logger.debug("chat_moved")
        except Exception as again:  # noqa: BLE001 - the store is out of reach: subscribers must not wait for ever
            logger.exception("failure_not_stored")
            failure = (
                again if isinstance(again, TurnwiseError) else StoreError(f"{info.message}; it could not be stored")
            )
            leased.runtime.writer.broadcaster.fail(leased.chat_id, failure)
            leased.give_up()
