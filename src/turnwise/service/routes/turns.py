"""Turns: send, edit, answer calls, interrupt, resume, compact, clear; the messages and the queue."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import Header, Path, Query
from pydantic import TypeAdapter
from starlette.responses import Response

from turnwise.engine.config.results import Chat, Compaction, SendReceipt, SubmissionReceipt, TurnResult
from turnwise.engine.prompt.views import HistoryView
from turnwise.engine.subscriptions.turns import after_receipt
from turnwise.service.bodies import NewContent, NewMessage, Reason, Submission
from turnwise.service.caller import ChatId, Sender, Subscriber
from turnwise.service.routes.answer import with_json
from turnwise.service.routes.pages import Paging
from turnwise.service.routes.preconditions import IdempotencyKey, IfMatch, tagged, version_in
from turnwise.service.routes.streamed import messages_in, streamed
from turnwise.states.calls import ToolResult
from turnwise.states.messages import Message, QueuedMessage, without_secrets
from turnwise.states.transcript import Transcript

_TRANSCRIPT: Final = TypeAdapter(Transcript)
MessageId = Annotated[str, Path(description="The message's id.", examples=["m1"])]


async def send_message(
    caller: Sender, chat_id: ChatId, body: NewMessage, idempotency_key: IdempotencyKey = None
) -> SendReceipt:
    """Accept a message: it is answered next, or waits in the queue."""
    await caller.chat(chat_id)
    return await caller.chats.send_message(chat_id, body.content, when_busy=body.when_busy, client_id=idempotency_key)


async def ask(
    caller: Subscriber,
    chat_id: ChatId,
    body: NewContent,
    response: Response,
    idempotency_key: Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            description="As of a message; asked again with it, nothing is sent twice.",
        ),
    ],
    within: Annotated[float, Query(ge=0, le=60, description="Seconds to wait.")] = 30,
) -> TurnResult[Any] | SendReceipt:
    """Send a message and answer 200 with its turn, or 202 if that takes longer: then ask the same again."""
    await caller.chat(chat_id)
    chats, key = caller.chats, idempotency_key
    receipt = await chats.send_message(chat_id, body.content, client_id=key)
    try:
        with after_receipt(receipt):
            return with_json(await chats.ask(chat_id, body.content, client_id=key, timeout=within))
    except TimeoutError:
        response.status_code = 202
        return receipt


async def list_messages(caller: Sender, chat_id: ChatId, paging: Paging, view: HistoryView = "user") -> list[Message]:
    """Return the history as a person sees it; operators and auditors may also see it as the model does."""
    if view != "user":
        await caller.check("list_messages.view", chat_id=chat_id)
    await caller.chat(chat_id)
    if view == "user":
        return await paging.page_from(messages_in(caller.engine.transcript_pages(chat_id)))
    return [without_secrets(one) for one in paging.page(await caller.engine.messages(chat_id, view=view))]


async def read_transcript(caller: Sender, chat_id: ChatId) -> Any:
    """Return what a person sees now, with the reply under way; events after `last_seq` go on from it.

    The answer is streamed: the service holds about a page of its messages at a time.
    """
    await caller.chat(chat_id)
    return await streamed(_spelled(caller.engine.transcript_pages(chat_id)), media_type="application/json", headers={})


async def _spelled(pages: AsyncGenerator[Transcript]) -> AsyncGenerator[str]:
    """Yield a transcript as JSON, piece by piece."""
    before, fields = '{"messages":[', dict[str, Any]()
    async with aclosing(pages):
        async for page in pages:
            fields = _TRANSCRIPT.dump_python(page, mode="json")
            if messages := fields.pop("messages"):
                yield before + json.dumps(messages, ensure_ascii=False)[1:-1]
                before = ","
    yield ("" if before == "," else before) + "]," + json.dumps(fields, ensure_ascii=False)[1:]


async def edit_message(  # noqa: PLR0913, PLR0917 - headers and body
    caller: Sender,
    chat_id: ChatId,
    message_id: MessageId,
    body: NewContent,
    response: Response,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> Chat:
    """Replace a user message; what followed it is cut."""
    await caller.chat(chat_id)
    edited = await caller.chats.edit_message(
        chat_id,
        message_id,
        body.content,
        client_id=idempotency_key,
        if_version=version_in(if_match),
    )
    return tagged(response, edited)


async def submit_tool_results(
    caller: Sender, chat_id: ChatId, body: Submission, if_match: IfMatch = None
) -> SubmissionReceipt:
    """Answer all open calls of the client, once."""
    chat = await caller.chat(chat_id)
    results = [ToolResult(one.call_id, one.output, one.is_error) for one in body.results]
    return await caller.submit(chat, results, if_version=version_in(if_match))


async def interrupt(caller: Sender, chat_id: ChatId, response: Response, body: Reason | None = None) -> Chat:
    """Stop the chat; what was shown is kept."""
    await caller.chat(chat_id)
    reason = None if body is None else body.reason
    return tagged(response, await caller.chats.interrupt(chat_id, reason=reason))


async def resume(caller: Sender, chat_id: ChatId, response: Response) -> Chat:
    """Go on after an interrupt or an error."""
    await caller.chat(chat_id)
    return tagged(response, await caller.chats.resume(chat_id))


async def compact(caller: Sender, chat_id: ChatId, response: Response) -> Chat:
    """Compact a resting chat now."""
    await caller.chat(chat_id)
    return tagged(response, await caller.chats.request_compaction(chat_id))


async def clear(caller: Sender, chat_id: ChatId, response: Response) -> Chat:
    """Let the model forget what was said; the transcript stays."""
    await caller.chat(chat_id)
    return tagged(response, await caller.chats.clear_context(chat_id))


async def list_compactions(caller: Sender, chat_id: ChatId, paging: Paging) -> list[Compaction]:
    """List the compactions with their summaries, raw and as the model reads them."""
    await caller.chat(chat_id)
    return paging.page(await caller.engine.compactions(chat_id))


async def list_queue(caller: Sender, chat_id: ChatId, paging: Paging) -> list[QueuedMessage]:
    """Return the queued messages, next one first."""
    await caller.chat(chat_id)
    return paging.page(await caller.engine.queued(chat_id))


async def edit_queued(
    caller: Sender,
    chat_id: ChatId,
    queued_id: MessageId,
    body: NewContent,
    response: Response,
    if_match: IfMatch = None,
) -> Chat:
    """Replace a queued message; it keeps its place."""
    await caller.chat(chat_id)
    edited = await caller.chats.edit_queued(chat_id, queued_id, body.content, if_version=version_in(if_match))
    return tagged(response, edited)


async def delete_queued(
    caller: Sender, chat_id: ChatId, queued_id: MessageId, response: Response, if_match: IfMatch = None
) -> Chat:
    """Take a message out of the queue."""
    await caller.chat(chat_id)
    left = await caller.chats.delete_queued(chat_id, queued_id, if_version=version_in(if_match))
    return tagged(response, left)


async def promote_queued(caller: Sender, chat_id: ChatId, queued_id: MessageId, response: Response) -> Chat:
    """Make a queued message the next turn at once; the current turn is interrupted."""
    await caller.chat(chat_id)
    return tagged(response, await caller.chats.promote_queued(chat_id, queued_id))
