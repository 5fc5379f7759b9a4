"""Ends a chat before its turn is done: settles an interrupt, or stores an error, with the streamed reply."""

from __future__ import annotations

from functools import partial

from turnwise.engine.blobs.sending import Sending
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.error_texts import private_text, public_text
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.jobs.reply import streamed_reply
from turnwise.engine.subagents.family import subagents_to_stop
from turnwise.engine.subagents.subagents import stop_subagent
from turnwise.logger import logger
from turnwise.states.errors import ChatUnreadable, StaleLease, StoreError, TurnwiseError
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import StepFacts
from turnwise.states.model_errors import INTERNAL, UNREADABLE, ModelError
from turnwise.states.triggers import Failed, Settled
from turnwise.states.values.limits import text_within
from turnwise.states.values.plain import well_formed


class SettleJob:
    """Brings an interrupted chat to rest."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def run(self) -> None:
        """Stop the subagents; then commit the shown part of the answer, and results for all open calls."""
        leased = self._leased
        for subagent in subagents_to_stop(leased.facts):
            await stop_subagent(leased.runtime, subagent)
        reply = await streamed_reply(leased.runtime, leased.facts, leased.attempt)
        async with Sending(leased.runtime.files, leased.chat_id) as sending:
            await leased.fire(Settled(token=leased.token, partial=await sending.partial(reply)))


class Failure:
    """Ends a chat in `error`, after a defect or an error of user code."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def commit(self, error: BaseException) -> None:
        """End the chat in `error`: with the shown part of the reply, or without it if that cannot be stored either."""
        leased = self._leased
        info = error_info(error, leased.facts.step, leased.configuration.settings)
        try:
            try:
                reply = await leased.retry_while_unavailable(
                    partial(streamed_reply, leased.runtime, leased.facts, leased.attempt)
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


def error_info(error: BaseException, step: StepFacts, settings: Settings) -> ErrorInfo:
    """Return an error as the chat stores it: a text for clients, and details for operators.

    If `Settings.describe_error` is set, exceptions from user code are logged but not stored: they may contain secrets.
    """
    describe, model_error = settings.describe_error, error if isinstance(error, ModelError) else None
    kind = INTERNAL if model_error is None else model_error.kind
    detail: str | None = None
    if isinstance(error, ChatUnreadable):
        kind, describe = UNREADABLE, None
        where = f"step {step.number}: {error.column} of chat {error.chat_id!r} cannot be read: {error.problem}"
        detail = f"{where}; `turnwise doctor` says what to do"
    elif model_error is not None:
        detail = model_error.message
    elif describe is None:
        detail = f"step {step.number}: {private_text(error)}"
    text = public_text(kind, error, describe)
    if describe is not None and model_error is None:
        text = f"step {step.number}: {text}"
    limit = settings.output_limit_bytes
    return ErrorInfo(
        kind=kind,
        message=text_within(well_formed(text), limit),
        step=step.number,
        attempt=step.attempt,
        retryable=model_error is not None and model_error.retryable,
        status=None if model_error is None else model_error.status,
        detail=None if detail is None else text_within(well_formed(detail), limit),
    )
