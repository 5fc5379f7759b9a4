"""Front ends that speak AG-UI or the AI SDK's UI message streams."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import quote

from ag_ui.core import RunAgentInput
from fastapi import Path, Query
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from turnwise.engine.config.results import Chat
from turnwise.http_problems import InvalidRequest
from turnwise.service.caller import Sender, Subscriber
from turnwise.service.pages import ANSWER_BYTES, json_size
from turnwise.service.problems import rest_of_request
from turnwise.service.protocols.agui import AGUIEncoder
from turnwise.service.protocols.ai_sdk import AISDKEncoder, ai_sdk_message_id
from turnwise.service.protocols.new_input import (
    AGUIRequest,
    AISDKRequest,
    NewInput,
    UIMessage,
    new_input_of_agui,
    new_input_of_ai_sdk,
)
from turnwise.service.protocols.stored_messages import to_agui_messages, to_ai_sdk_messages
from turnwise.service.routes.streamed import streamed
from turnwise.service.routes.subagent_calls import open_subagent_calls
from turnwise.service.routes.threads import (
    act,
    answer_start,
    check_messages,
    clients_calls,
    create,
    find_chat,
    regenerate,
)
from turnwise.service.routes.turn_stream import TurnRange, stream_turns
from turnwise.service.sse import Stream
from turnwise.states.calls import ClientTool, ToolCall
from turnwise.states.messages import Message
from turnwise.states.names import ChatState, WhenBusy

_RESUMED: Final = frozenset({ChatState.waiting, ChatState.interrupted, ChatState.error})
_DONE: Final = b"data: [DONE]\n\n"
_UI_STREAM: Final = {"x-vercel-ai-ui-message-stream": "v1"}
ThreadId = Annotated[str, Path(description="The client's own name of the chat, or the id of a chat.")]
SDKVersion = Annotated[Literal["6", "7"], Query(description="The major version of the page's package `ai`.")]


async def run_agui(caller: Subscriber, body: AGUIRequest) -> StreamingResponse:
    """Run an AG-UI agent: the thread is a chat, which begins with its first run; the answer is a stream of events."""
    _check_well_formed(body)  # much of it is sent back, after the first byte of the answer
    tools = [
        ClientTool(tool.name, tool.description or tool.name, _schema(tool.parameters)) for tool in body.tools or ()
    ]
    options = body.forwarded_props if isinstance(body.forwarded_props, dict) else {}
    agent = options.get("agent")
    new_input = replace(new_input_of_agui(body), when_busy=_when_busy(options))
    old = await find_chat(caller, body.thread_id)
    await check_messages(caller, old, new_input)
    chat, is_new = (old, False) if old else await create(caller, body.thread_id, agent, tools, new_input)
    asked = clients_calls(chat).union(call.call_id for call in await open_subagent_calls(caller, chat))
    nothing_new = not new_input.messages and not new_input.answers.keys() & asked
    with rest_of_request(has_begun=is_new):
        turns = (
            TurnRange((await answer_start(caller.engine, chat))[0], chat=chat)
            if nothing_new
            else await act(caller, chat, new_input, is_new=is_new)
        )
    messages = [json.loads(message.model_dump_json(by_alias=True)) for message in body.messages]
    if nothing_new:  # the client was cut off: it gets the turn anew
        new_input = NewInput()
    if nothing_new and not messages:  # a page that was reloaded gets the earlier messages, too
        messages = [*to_agui_messages(chat.id, await _newest_messages(caller, chat))]
    encoder = AGUIEncoder(
        body.thread_id,
        body.run_id,
        history=messages,
        known_calls=new_input.known_calls,
        answered=new_input.answered,
        for_owner=caller.is_owner,
    )
    opening = list(encoder.begin(anew=nothing_new))
    return Stream(stream_turns(caller, chat.id, turns, encoder, first=opening), _naming(chat.id))


async def _newest_messages(caller: Sender, chat: Chat) -> Iterable[Message]:
    """Return the messages before the open answer, as many of the newest turns as fit into one event.

    The open answer restarts after the last steering message of the turn.
    """
    earlier, answer, size = deque[Message](), list[Message](), 0
    async with aclosing(caller.engine.transcript_pages(chat.id)) as pages:
        async for page in pages:
            for one in page.messages:
                if one.turn >= chat.turn and one.role != "user":
                    answer.append(one)
                elif one.turn <= chat.turn:
                    earlier += [*answer, one]
                    size += sum(map(json_size, [*answer, one]))
                    answer.clear()
            while size > ANSWER_BYTES and len(earlier) > 1:
                size -= json_size(earlier.popleft())
                while len(earlier) > 1 and earlier[0].role != "user":
                    size -= json_size(earlier.popleft())
    return earlier


async def chat_ai_sdk(caller: Subscriber, body: AISDKRequest, version: SDKVersion = "6") -> StreamingResponse:
    """Take what is new in an AI SDK page's messages; the answer is a UI message stream."""
    new_input = new_input_of_ai_sdk(body)
    tools = [ClientTool(**tool.model_dump()) for tool in body.client_tools]
    if not new_input.messages and not new_input.answers:
        raise InvalidRequest([{"field": "messages", "problem": "must end with what is new: a message or an answer"}])
    old = await find_chat(caller, body.id)
    await check_messages(caller, old, new_input)
    chat, is_new = (old, False) if old else await create(caller, body.id, body.agent, tools, new_input)
    do = regenerate if body.trigger == "regenerate-message" and new_input.messages else act
    with rest_of_request(has_begun=is_new):
        turns = await do(caller, chat, new_input, is_new=is_new)
    own_turn = chat.turn if not new_input.messages else chat.turn + 1 if turns.has_started else None
    encoder = AISDKEncoder(
        None if own_turn is None else ai_sdk_message_id(chat.id, own_turn),
        version=7 if version == "7" else 6,
        known_calls=() if new_input.messages else new_input.known_calls,
        answered=() if new_input.messages else new_input.answered - turns.corrected,
        for_owner=caller.is_owner,
    )
    return Stream(stream_turns(caller, chat.id, turns, encoder, last=_DONE), _UI_STREAM | _naming(chat.id))


async def list_ui_messages(caller: Sender, thread_id: ThreadId) -> Any:
    """Return the history as an AI SDK page has it, for a page that is opened; empty if there is no such chat.

    The answer is streamed: the service holds about a page of it at a time, and the last turn.
    """
    chat = await find_chat(caller, thread_id)
    if chat is None:
        return []
    lines = _stream_ai_sdk_messages(caller, chat, await open_subagent_calls(caller, chat))
    return await streamed(lines, media_type="application/json", headers=_naming(chat.id))


async def _stream_ai_sdk_messages(caller: Sender, chat: Chat, asked: tuple[ToolCall, ...]) -> AsyncGenerator[str]:
    """Yield a page's messages as JSON, turn by turn."""
    rest, before = list[Message](), "["
    async with aclosing(caller.engine.transcript_pages(chat.id)) as pages:
        async for page in pages:
            rest += page.messages
            turn = rest[-1].turn if rest else 0
            ended = [one for one in rest if one.turn != turn]
            rest = rest[len(ended) :]
            for one in to_ai_sdk_messages(chat.id, ended):
                yield f"{before}{UIMessage(**one).model_dump_json()}"
                before = ","
    for one in to_ai_sdk_messages(chat.id, rest, (*page.open_calls, *asked), for_owner=caller.is_owner):
        yield f"{before}{UIMessage(**one).model_dump_json()}"
        before = ","
    yield "[]" if before == "[" else "]"


async def resume_ai_sdk(
    caller: Subscriber,
    thread_id: ThreadId,
    *,
    version: SDKVersion = "6",
    finished: Annotated[bool, Query(description="Also replay a turn that has ended.")] = False,
) -> Response:
    """Replay the turn under way from its start, or from the last message that has steered it, and go on with it.

    The stream goes on while only an operator may answer what the turn, or a subagent, waits for. 204 if there is none.
    """
    chat = await find_chat(caller, thread_id)
    if chat is None or chat.turn == 0 or (chat.state in _RESUMED and not finished):
        return Response(status_code=204)
    after, steered_by = await answer_start(caller.engine, chat)
    turns = TurnRange(after, chat=chat, waits_for_operators=True)
    encoder = AISDKEncoder(
        ai_sdk_message_id(chat.id, chat.turn, behind=steered_by),
        version=7 if version == "7" else 6,
        for_owner=caller.is_owner,
    )
    lines = stream_turns(caller, chat.id, turns, encoder, last=_DONE, hold_back=version == "6")
    return Stream(lines, _UI_STREAM | _naming(chat.id))


def _naming(chat_id: str) -> dict[str, str]:
    return {"Turnwise-Chat": quote(chat_id)}


def _check_well_formed(body: RunAgentInput) -> None:
    try:
        body.model_dump_json()
    except ValueError:
        raise InvalidRequest(
            [{"field": "body", "problem": "must be well-formed text, nested 200 deep at most"}]
        ) from None


def _when_busy(options: Mapping[str, Any]) -> WhenBusy:
    when_busy: WhenBusy = options.get("when_busy", "queue")
    if when_busy not in get_args(WhenBusy):
        problem = f"must be one of {', '.join(get_args(WhenBusy))}"
        raise InvalidRequest([{"field": "forwardedProps.when_busy", "problem": problem}])
    return when_busy


def _schema(parameters: object) -> dict[str, Any]:
    return dict(parameters) if isinstance(parameters, dict) and parameters else {"type": "object"}
