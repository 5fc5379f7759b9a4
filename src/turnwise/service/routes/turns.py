"""Routes that ask and wait for the answer, list messages, and stream the transcript."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import Header, Query
from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.responses import Response

from turnwise.engine.agents.answer_format import format_of
from turnwise.engine.config.results import SendReceipt, TurnResult
from turnwise.engine.prompt.views import HistoryView
from turnwise.engine.subscriptions.turns import after_receipt, answer_in
from turnwise.service.bodies import NewContent
from turnwise.service.caller import ChatId, Sender, Subscriber
from turnwise.service.pages import Paging
from turnwise.service.routes.streamed import iterate_pages, streamed
from turnwise.states.messages import Message, without_secrets
from turnwise.states.transcript import Transcript

_ANY_FORM: Final = format_of("any", {"type": "object"})
_TRANSCRIPT: Final = TypeAdapter(Transcript)

_View = Annotated[HistoryView, Query(description="What the user sees, what the model sees, or what is stored.")]


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
            description="Idempotency key of the message. A retry with the same key does not send the message again.",
        ),
    ],
    within: Annotated[float, Query(ge=0, le=60, description="Seconds to wait.")] = 30,
) -> TurnResult[Any] | SendReceipt:
    """Send a message and wait for its turn.

    Returns 200 with the result, or 202 with a receipt after `within` seconds: repeat the request with the same key to
    keep waiting.
    """
    await caller.chat(chat_id)
    chats, key = caller.chats, idempotency_key
    receipt = await chats.send_message(chat_id, body.content, client_id=key)
    try:
        with after_receipt(receipt):
            return _with_json_output(await chats.ask(chat_id, body.content, client_id=key, timeout=within))
    except TimeoutError:
        response.status_code = 202
        return receipt


async def list_messages(caller: Sender, chat_id: ChatId, paging: Paging, view: _View = "user") -> list[Message]:
    """List the messages that the user sees. Operators and auditors may also choose the model's view."""
    if view != "user":
        await caller.check("list_messages.view", chat_id=chat_id)
    await caller.chat(chat_id)
    if view == "user":
        return await paging.page_from(iterate_pages(caller.engine.transcript_pages(chat_id)))
    return [without_secrets(one) for one in paging.page(await caller.engine.messages(chat_id, view=view))]


async def read_transcript(caller: Sender, chat_id: ChatId) -> Any:
    """Return the messages that the user sees, with the reply in progress; to continue, read events after `last_seq`.

    The response is streamed: the service keeps about one page of messages in memory.
    """
    await caller.chat(chat_id)
    return await streamed(
        _stream_json(caller.engine.transcript_pages(chat_id)), media_type="application/json", headers={}
    )


async def _stream_json(pages: AsyncGenerator[Transcript]) -> AsyncGenerator[str]:
    """Yield a transcript as JSON, piece by piece."""
    before, fields = '{"messages":[', dict[str, Any]()
    async with aclosing(pages):
        async for page in pages:
            fields = _TRANSCRIPT.dump_python(page, mode="json")
            if messages := fields.pop("messages"):
                yield before + json.dumps(messages, ensure_ascii=False)[1:-1]
                before = ","
    yield ("" if before == "," else before) + "]," + json.dumps(fields, ensure_ascii=False)[1:]


def _with_json_output(result: TurnResult[Any]) -> TurnResult[Any]:
    """Make `output` JSON-serializable. Fall back to the model's raw answer if the parsed value has no JSON form."""
    try:
        output = json.loads(to_json(result.output))
    except ValueError:
        output = answer_in(result.messages, lambda _agent: _ANY_FORM, result.chat.agent, result.stop_reason)
    return replace(result, output=output)
