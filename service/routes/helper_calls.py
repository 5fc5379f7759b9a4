"""Calls of subagents that a client has to answer, as the page of the chat that waits for them is shown them.

A page knows one chat. So these calls get ids of their own there, made of the subagent's chat and the call's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from turnwise.engine.results import Chat
from turnwise.service.caller import Caller
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.events import ActionRequiredEvent, Event, StatusEvent
from turnwise.states.names import ChatState

POLL_INTERVAL_S: Final = 0.5
"""How often subagents are looked at while their chat waits for them and a page follows it."""
_SEPARATOR: Final = "/"


async def asked_by_helpers(caller: Caller, chat: Chat) -> tuple[ToolCall, ...]:
    """Return the open calls of a chat's subagents, and of theirs, that a client has to answer, as a page knows them."""
    asked = await _asking(caller, chat)
    return tuple(
        replace(call, call_id=f"{helper.id}{_SEPARATOR}{call.call_id}", step=chat.step)
        for helper in asked
        for call in helper.open_calls
        if call.is_client
    )


async def _asking(caller: Caller, chat: Chat) -> list[Chat]:
    if chat.awaits not in ("helpers", "both"):
        return []
    asking: list[Chat] = []
    for helper in await caller.engine.helpers(chat.id):
        if caller.sees(helper):
            asking += [helper] if helper.awaits in ("client", "both") else []
            asking += await _asking(caller, helper)
    return asking


async def answer_helpers(caller: Caller, chat: Chat, answers: Mapping[str, ToolResult], *, only_whole: bool) -> bool:
    """Give subagents the answers to their calls; return whether there were any.

    Args:
        caller: who answers.
        chat: the chat that waits for them.
        answers: by the ids that its page knows.
        only_whole: whether subagents that were not given all their answers are left alone.

    Raises:
        NotAllowed: a call asks for an approval that this caller may not give.
        ToolResultMismatch: a subagent was not given all its answers.
    """
    has_answered = False
    for helper in await _asking(caller, chat):
        own = {f"{helper.id}{_SEPARATOR}{call.call_id}": call.call_id for call in helper.open_calls if call.is_client}
        given = [
            ToolResult(call_id, answers[name].output, answers[name].is_error)
            for name, call_id in own.items()
            if name in answers
        ]
        if given and not (only_whole and (len(given) < len(own) or not caller.may_give(given, helper))):
            await caller.check("submit_tool_results", chat_id=helper.id)
            await caller.submit(helper, given)
            has_answered = True
    return has_answered


async def with_helper_calls(events: AsyncGenerator[Event], caller: Caller, chat_id: str) -> AsyncGenerator[Event]:
    """Yield the events of a turn, and end with the calls of subagents that a client has to answer."""

    async def asked() -> tuple[ToolCall, ...]:
        return await asked_by_helpers(caller, await caller.chat(chat_id))

    own: Sequence[ToolCall] = ()
    waits = True
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait([coming], timeout=POLL_INTERVAL_S if waits else None))[0]:
                    if calls := await asked():
                        yield ActionRequiredEvent(chat_id=chat_id, calls=calls)
                        return
                event = coming.result()
            finally:
                coming.cancel()
                await asyncio.wait([coming])
            if event is None:
                break
            if isinstance(event, StatusEvent):
                waits, own = event.state is ChatState.requires_action, ()
            if isinstance(event, ActionRequiredEvent):
                own = event.calls
            yield event
    if waits and own and (calls := await asked()):
        yield ActionRequiredEvent(chat_id=chat_id, calls=(*own, *calls))
