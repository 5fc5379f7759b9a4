"""Client calls of subagents, shown on the page of the parent chat.

A page shows one chat. There, the id of a subagent's call is made of the subagent's chat id and the call's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec.structs import replace

from turnwise.engine.config.results import Chat
from turnwise.service.caller import Caller
from turnwise.service.protocols.pieces import SUBAGENT_SEPARATOR, operators_calls
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.events import ActionRequiredEvent, Event, StatusEvent
from turnwise.states.names import ChatState

POLL_INTERVAL_S: Final = 0.5
"""The interval at which an open page's request polls the subagents of its chat."""
_OPERATOR_POLL_INTERVAL_S: Final = 5.0
"""The same once an operator is awaited: that may take days."""


async def open_subagent_calls(caller: Caller, chat: Chat) -> tuple[ToolCall, ...]:
    """Return the open client calls of a chat's subagents at every depth, with the ids that its page uses."""
    subagents = await _waiting_subagents(caller, chat)
    return tuple(
        replace(call, call_id=f"{subagent.id}{SUBAGENT_SEPARATOR}{call.call_id}", step=chat.step)
        for subagent in subagents
        for call in subagent.open_calls
        if call.is_client
    )


async def _waiting_subagents(caller: Caller, chat: Chat) -> list[Chat]:
    if chat.awaits not in ("subagents", "both"):
        return []
    waiting: list[Chat] = []
    for subagent in await caller.engine.subagents(chat.id):
        if caller.sees(subagent):
            waiting += [subagent] if subagent.awaits in ("client", "both") else []
            waiting += await _waiting_subagents(caller, subagent)
    return waiting


async def answer_subagents(caller: Caller, chat: Chat, answers: Mapping[str, ToolResult], *, only_whole: bool) -> bool:
    """Submit answers, by the ids that the page uses, to the calls of subagents; return whether there were any.

    With `only_whole`, skip a subagent for which an answer is missing or not permitted, instead of raising.
    """
    has_answered = False
    for subagent in await _waiting_subagents(caller, chat):
        asked = (call.call_id for call in subagent.open_calls if call.is_client)
        own = {f"{subagent.id}{SUBAGENT_SEPARATOR}{call_id}": call_id for call_id in asked}
        given = [
            ToolResult(call_id, answers[name].output, answers[name].is_error)
            for name, call_id in own.items()
            if name in answers
        ]
        if given and not (only_whole and (len(given) < len(own) or not caller.may_give(given, subagent))):
            await caller.check("submit_tool_results", chat_id=subagent.id)
            await caller.submit(subagent, given)
            has_answered = True
    return has_answered


def _only_operators_answer(caller: Caller, calls: Sequence[ToolCall]) -> bool:
    """Whether the caller may answer none of the open calls, and an operator may."""
    asked = [call for call in calls if call.is_client]
    return caller.is_owner and bool(asked) and len(operators_calls(asked)) == len(asked)


class OperatorsFeed(msgspec.Struct, frozen=True):
    """The events of a chat for an owner, to whom a chat that waits for an operator alone is not at rest."""

    caller: Caller

    async def events(
        self, chat_id: str, *, after: int = 0, follow: bool = True, until_rest: bool = False
    ) -> AsyncGenerator[Event]:
        """Yield a chat's events."""
        cursor, waits = after, False
        while True:
            events = self.caller.events(chat_id, after=cursor, follow=follow, until_rest=until_rest and not waits)
            async with aclosing(events):
                async for event in events:
                    cursor = event.seq
                    yield event
                    if waits:
                        break
            if not until_rest:
                return
            chat = await self.caller.chat(chat_id)
            waits = chat.last_seq <= cursor and _only_operators_answer(self.caller, chat.open_calls)
            if chat.last_seq <= cursor and not waits:
                return


async def with_subagent_calls(
    events: AsyncGenerator[Event], caller: Caller, chat_id: str, *, waits_for_operators: bool = False
) -> AsyncGenerator[Event]:
    """Yield the events of a turn, then the client calls of subagents, if the chat waits for any.

    With `waits_for_operators`, go on behind calls that only an operator may answer.
    """

    async def open_calls() -> tuple[ToolCall, ...]:
        return await open_subagent_calls(caller, await caller.chat(chat_id))

    own: Sequence[ToolCall] = ()
    waits, interval = True, POLL_INTERVAL_S
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait([coming], timeout=interval if waits else None))[0]:
                    if calls := await open_calls():
                        yield ActionRequiredEvent(chat_id=chat_id, calls=calls)
                        if not (waits_for_operators and _only_operators_answer(caller, calls)):
                            return
                        interval = _OPERATOR_POLL_INTERVAL_S
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
    if waits and own and (calls := await open_calls()):
        yield ActionRequiredEvent(chat_id=chat_id, calls=(*own, *calls))
