"""Assertions about chats: contents, states, and refusals that write nothing."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from support.events import events_of
from turnwise import ChatState, Engine, Message
from turnwise.states.messages import TextPart, ToolCallPart, ToolResultPart


def contents(messages: Sequence[Message]) -> list[tuple[str, Any]]:
    return [(message.role, message.result.output if message.result else message.text) for message in messages]


def lines_of(messages: Sequence[Message]) -> list[str]:
    """Return one line per message: its role and its parts."""
    return [f"{message.role}: {' '.join(_content(part) for part in message.parts)}" for message in messages]


def _content(part: object) -> str:
    match part:
        case TextPart():
            return part.text
        case ToolCallPart():
            return f"{part.name}({part.call_id})"
        case ToolResultPart():
            return f"{part.call_id}={part.output}"
    return str(getattr(part, "type", part))


async def path_of(engine: Engine, chat_id: str) -> list[ChatState]:
    """Return the states of the chat in order, from its audit log."""
    records = await engine.audit(chat_id)
    return [ChatState(record.target) for record in records if record.source != record.target]


async def _account(engine: Engine, chat_id: str) -> list[object]:
    return [
        await engine.get_chat(chat_id),
        await engine.audit(chat_id),
        await events_of(engine, chat_id),
        await engine.messages(chat_id, view="raw"),
        await engine.messages(chat_id, view="model"),
        await engine.queued(chat_id),
    ]


@asynccontextmanager
async def untouched(engine: Engine, chat_id: str) -> AsyncIterator[None]:
    """Assert that the block writes nothing to the chat: no version, record, event, message or queue."""
    before = await _account(engine, chat_id)
    yield
    assert await _account(engine, chat_id) == before
