"""A model that notes every invalid request, for the tests of an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeGuard

import msgspec

from turnwise.providers.protocol import ModelPart, ModelRequest
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.messages import Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Audience, Executor

Signed = tuple[str, str]
"""The text and the signature of a reasoning part."""

_PARTS = {
    "system": {"text"},
    "user": {"text", "file"},
    "assistant": {"text", "reasoning", "tool_call", "tool_result", "file"},
    "tool": {"tool_result"},
}


class StrictModel(ScriptedModel):
    """A scripted model that records every fault that a strict provider would find in a request.

    `faults` must be empty at the end of a test.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.faults: list[str] = []
        self._signed: dict[tuple[str, int], list[Signed]] = {}

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the next reply, and note the faults of the request."""
        name = f"request {len(self.requests) + 1} ({request.purpose} of step {request.step})"
        faults = [*faults_in(request), *self._resigned(request)]
        self.faults += [f"{name}: {fault}" for fault in faults]
        reply: list[ModelPart] = []
        async with aclosing(super().stream(request)) as parts:  # type: ignore[type-var]
            async for part in parts:
                reply.append(part)
                if part.type == "finish" and request.purpose == "step":
                    self._signed[request.chat_id, request.step] = list(_signed(reply))
                yield part

    def _resigned(self, request: ModelRequest) -> Iterator[str]:
        """Yield where signed reasoning is not sent back as this model gave it."""
        for message in request.messages:
            original = self._signed.get((request.chat_id, message.step))
            if original is None or message.role != "assistant" or message.partial:
                continue
            back = [(part.text, part.signature) for part in message.parts if _is_signed(part)]
            if back != original:
                yield f"{message.id}: the model signed {original}, and gets back {back}"


def faults_in(request: ModelRequest) -> list[str]:
    """Return what a strict provider would refuse in a request; nothing for a valid one."""
    history = list(request.messages)
    while history and history[-1].role == "system":
        history.pop()
    return [
        *_faults_of_order(history),
        *_faults_of_pairs(history),
        *(fault for message in request.messages for fault in _faults_of_message(message)),
        *_faults_of_tools(request),
    ]


def _faults_of_order(history: Sequence[Message]) -> Iterator[str]:
    if not history:
        yield "there is nothing to answer"
        return
    if history[0].role != "user" and not history[0].imported:  # a greeting: the adapters put a user's turn before it
        yield f"the history begins with a message of role {history[0].role}"
    if history[-1].role not in {"user", "tool"}:
        yield f"the history ends with a message of role {history[-1].role}"
    for message in history:
        if message.role == "system":
            yield f"{message.id}: a system message stands inside the history"
    stored = [message.id for message in history if message.position]
    if len(set(stored)) != len(stored):
        yield f"a message comes twice: {stored}"


def _faults_of_pairs(history: Sequence[Message]) -> Iterator[str]:
    """Yield where calls and results don't pair: each call's one result follows its message, in call order."""
    call_ids: set[str] = set()
    due: list[str] = []
    for message in history:
        if message.role == "tool" and message.result is not None:
            call_id = message.result.call_id
            if due and due[0] == call_id:
                due.pop(0)
            else:
                yield f"{message.id}: the result of {call_id} comes where the result of {due[:1] or 'no call'} is due"
            continue
        if due:
            yield f"{message.id}: comes before the results of {due}"
        for call in message.calls:
            if call.call_id in call_ids:
                yield f"{message.id}: call id {call.call_id} is used again"
            call_ids.add(call.call_id)
        due = [call.call_id for call in message.calls if call.executor is not Executor.provider]
    if due:
        yield f"the history ends before the results of {due}"


def _faults_of_message(message: Message) -> Iterator[str]:
    if not message.parts:
        yield f"{message.id}: has no part"
    if message.audience is Audience.user:
        yield f"{message.id}: is for the user only"
    for part in message.parts:
        if part.type not in _PARTS[message.role]:
            yield f"{message.id}: a message of role {message.role} holds a part of type {part.type}"
        if isinstance(part, TextPart) and not part.text.strip():
            yield f"{message.id}: holds an empty text"
        if isinstance(part, ReasoningPart) and not part.text and part.signature is None:
            yield f"{message.id}: holds an empty reasoning"
        if isinstance(part, ReasoningPart) and message.partial and part.signature is None:
            yield f"{message.id}: holds reasoning that was cut off before its signature"
    if message.role == "tool" and len(message.parts) != 1:
        yield f"{message.id}: a tool message holds {len(message.parts)} parts"
    yield from _faults_of_provider_calls(message)
    try:
        msgspec.json.encode(message)
    except ValueError as error:
        yield f"{message.id}: cannot be sent as JSON: {error}"


def _faults_of_provider_calls(message: Message) -> Iterator[str]:
    """Yield where a provider's call and its result don't stand side by side in the assistant's message."""
    if message.role != "assistant":
        return
    before: Part | None = None
    for part in (*message.parts, None):
        called = before.call_id if _is_provider_call(before) else None
        answered = part.call_id if isinstance(part, ToolResultPart) else None
        if called != answered:
            yield f"{message.id}: provider call {called} is followed by result {answered}"
        before = part


def _faults_of_tools(request: ModelRequest) -> Iterator[str]:
    names = [tool.name for tool in request.tools]
    if len(set(names)) != len(names):
        yield f"a tool is offered twice: {names}"
    for tool in request.tools:
        if tool.schema.get("type") != "object":
            yield f"tool {tool.name}: its schema is no object schema"


def _is_provider_call(part: Part | None) -> TypeGuard[ToolCallPart]:
    return isinstance(part, ToolCallPart) and part.executor is Executor.provider


def _is_signed(part: Part) -> TypeGuard[ReasoningPart]:
    return isinstance(part, ReasoningPart) and part.signature is not None


def _signed(parts: Iterable[ModelPart]) -> Iterator[Signed]:
    text = ""
    for part in parts:
        if part.type != "reasoning_delta":
            text = ""
            continue
        text += part.text
        if part.signature is not None:
            yield text, part.signature
            text = ""
