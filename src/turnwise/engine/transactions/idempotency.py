"""Replays: a request that a client sends again is answered as it was the first time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from turnwise.engine.config.results import SendReceipt, SubmissionReceipt, chat_of
from turnwise.persistence.protocol import ChatStore
from turnwise.states.calls import ToolResult
from turnwise.states.errors import ConflictingReplay, DeadlineExpired, TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.messages import Part
from turnwise.states.names import CallStatus
from turnwise.states.values.digests import digest
from turnwise.states.values.values import fields_of


async def first_receipt(
    store: ChatStore, chat_id: str, client_id: str | None, content_digest: str | None
) -> SendReceipt | None:
    """Return the receipt of a message or edit that was accepted with this `client_id` before, if one was.

    Raises:
        ConflictingReplay: it was for other content.
    """
    if client_id is None or content_digest is None:
        return None
    receipt = await store.receipt(chat_id, client_id)
    if receipt is None:
        return None
    if not receipt.is_for(content_digest):
        raise ConflictingReplay(client_id=client_id, message_id=receipt.message_id)
    chat = chat_of(await store.facts(chat_id))
    await store.confirm()
    return SendReceipt(chat, receipt.message_id, queued=receipt.queued, replayed=True, seq=receipt.seq)


async def replayed_submission(
    store: ChatStore, chat_id: str, results: Sequence[ToolResult], refusal: TurnwiseError
) -> SubmissionReceipt:
    """Return the first receipt if exactly these results, or some of one submission, were accepted before.

    Raises:
        TurnwiseError: they were not; `refusal`, or what exactly is wrong.
    """
    calls = await store.calls(chat_id, [result.call_id for result in results])
    pairs = [(result, calls[result.call_id]) for result in results if result.call_id in calls]
    if not pairs or len({result.call_id for result in results}) != len(results) or len(pairs) != len(results):
        raise refusal
    # A local call that has timed out ran for too long: it was allowed in time, or was never the client's.
    expired = [call.call_id for _, call in pairs if call.is_client and call.status is CallStatus.timed_out]
    for result, call in pairs:
        if call.answer is None and (call.open or not call.is_client):
            raise DeadlineExpired(expired) if expired else refusal
        if call.answer is None and call.status is not CallStatus.timed_out:
            raise ConflictingReplay(call_id=call.call_id, outcome=call.status)
        if call.answer and not call.answer.is_for(result.digest):
            raise ConflictingReplay(call_id=call.call_id)
    if expired:
        raise DeadlineExpired(expired)
    receipt_id, *others = {call.answer.receipt_id for _, call in pairs if call.answer}
    if others:
        raise refusal
    chat = chat_of(await store.facts(chat_id))
    await store.confirm()
    return SubmissionReceipt(chat, receipt_id, replayed=True)


def late_results(results: Sequence[ToolResult], facts: Facts, now: datetime) -> list[str]:
    """Return the ids of calls whose deadline has passed."""
    due = {call.call_id for call in facts.calls if call.is_due(now)}
    return [result.call_id for result in results if result.call_id in due]


def digest_of_parts(parts: Sequence[Part]) -> str:
    return digest([_fields_sent(part) for part in parts])


def _fields_sent(part: Part) -> dict[str, Any]:
    """Return the fields that the client sent of a part; of a file without a blob, those that files had before blobs."""
    fields = fields_of(part)
    return {name: fields[name] for name in fields if name != "size" and (name != "blob" or fields[name] is not None)}
