"""Asks the model for a summary of messages: in one request or, if that is too long, in pieces."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from turnwise.engine.blobs.loaded import with_files
from turnwise.engine.config.results import Spending
from turnwise.engine.isolation.clock import time_limit
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.jobs.reply import complete_text, generate_reply
from turnwise.engine.jobs.request import Requests, prepared_for
from turnwise.engine.jobs.retries import longer, note_on_rejection
from turnwise.engine.prompt.history import SUMMARY_PREFIX, transient
from turnwise.foreign import guarded
from turnwise.providers.protocol import Model, ModelReply, ModelRequest, refusal_of
from turnwise.providers.usage_and_prices import add_reply_cost
from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    length_of,
)
from turnwise.states.model_errors import CONTEXT_OVERFLOW, NOTHING_FOLDED, ModelError
from turnwise.states.usage import Usage
from turnwise.states.values.plain import well_formed
from turnwise.states.values.values import unshared

MOST_REQUESTS: Final = 32
"""The most model calls of one compaction."""
_SMALLEST: Final = 200
"""Characters; a shorter piece is not cut any more."""

Outcome = TypeVar("Outcome")


class Summariser:
    """Asks the model of a chat for summaries."""

    def __init__(self, leased: LeasedChat, spending: Spending) -> None:
        self._leased = leased
        self._spending = spending
        self._requests = Requests(leased)

    @property
    def model(self) -> Model:
        return self._leased.configuration.settings.compaction.model or self._leased.configuration.model

    async def in_time(self, work: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Return the result of a model call or strategy, within `CompactionPolicy.timeout`."""
        limit = longer(self._leased.configuration.settings.compaction.timeout, self._leased.facts.step.timeouts)
        with time_limit(self._leased.runtime.clock, limit, "network", "no summary"):
            return await self._leased.runtime.tasks.user_calls.run(work, "compaction", chat_id=self._leased.chat_id)

    async def summarise(self, messages: Sequence[Message]) -> str:
        """Return a summary of the messages: of all at once or, if that is too long for the model, piece by piece.

        It is too long if the provider says so, or by an estimate: some servers cut a prompt silently. Each piece is
        summarised together with the summary of those before it. A refused piece is halved, and so are those after it. A
        single message that is too long for one request is shortened.
        """
        waiting = deque(_whole_pieces(messages))
        if not waiting:
            raise ModelError(NOTHING_FOLDED, message="there was nothing to fold")
        summary, room, requests = "", self._room_in_window(messages), 0
        while waiting:
            piece = _next_piece(waiting, room)
            if requests == MOST_REQUESTS:
                raise ModelError(CONTEXT_OVERFLOW, message=f"the history was not folded by {MOST_REQUESTS} requests")
            requests += 1
            try:
                summary = await self._ask(summary, piece)
            except ModelError as refusal:
                room = _length(piece) // 2
                if refusal.kind != CONTEXT_OVERFLOW or room < _SMALLEST:
                    raise
                # The summary covers all pieces before this one.
                waiting.extendleft(reversed(_whole_pieces(piece)))
        return summary

    def _room_in_window(self, messages: Sequence[Message]) -> int | None:
        """Return the characters of messages that fit into one request."""
        compaction, limits = self._leased.facts.compaction, self._leased.configuration.limits
        tokens, window = compaction.context_tokens, compaction.context_limit or limits.context_limit
        if not compaction.estimated or tokens is None or window is None or tokens <= window:
            return None
        return max(int(_length(messages) * window * limits.threshold_percent / (tokens * 100)), _SMALLEST)

    async def _ask(self, summary: str, messages: Sequence[Message]) -> str:
        before = [transient("user", SUMMARY_PREFIX + summary, messages[0])] if summary else []
        history = await prepared_for(
            self._leased.runtime, self._leased.configuration, self._leased.facts, "summary", [*before, *messages]
        )
        demands = self._leased.configuration.settings.compaction.prompt, note_on_rejection(self._leased.facts.step)
        prompt = transient("user", "\n\n".join(filter(None, demands)), messages[-1])
        parameters = self._requests.parameters_for_summaries()
        reply = await self._generate([*history, prompt], parameters)
        # Tools are offered for the provider's cache; calls are forbidden only after a reply that makes some.
        if reply.calls and not reply.text.strip():
            reply = await self._generate([*history, prompt], {**parameters, "tool_choice": "none"})
        text = well_formed(complete_text(reply)).strip()
        if not text:
            raise ModelError("bad_request", message="the summary was empty")
        return text

    async def _generate(self, messages: list[Message], parameters: dict[str, Any]) -> ModelReply:
        model = self.model
        request = await self._requests.build("summary", messages, parameters, model=model)
        if model is not self._leased.configuration.model:
            request = _without_refused_tools(request, model)
        usage: Usage | None = None
        try:
            with self._leased.runtime.observers.model_call(model, request, trace=self._leased.facts.turn.trace) as call:
                reply = await self.in_time(partial(self._reply, model, request))
                reply = add_reply_cost(model, reply, self._leased.runtime.clock.now())
                usage = reply.usage
                if call is not None:
                    call.reply = unshared(reply)
        finally:  # a failed call may have a cost, too: it makes the sum partial
            self._spending.add(usage)
        return reply

    async def _reply(self, model: Model, request: ModelRequest) -> ModelReply:
        return await generate_reply(model, await with_files(self._leased.runtime.files, request, model))


def _without_refused_tools(request: ModelRequest, model: Model) -> ModelRequest:
    """Return a request without the tools that only the chat's own provider knows."""
    with guarded():
        tools = tuple(tool for tool in request.tools if refusal_of(model, [tool], {}) is None)
    return replace(request, tools=tools)


def _whole_pieces(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the messages in pieces that may be separated: each call stays with its results."""
    pieces: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and pieces:
            pieces[-1].append(message)
        else:
            pieces.append([message])
    return pieces


def _next_piece(waiting: deque[list[Message]], room: int | None) -> list[Message]:
    """Take as many whole pieces as there is room for, at least one; one that is too long alone is shortened."""
    piece = waiting.popleft()
    if room is not None and _length(piece) > room:
        return [_shorten(message, max(room // len(piece), 1)) for message in piece]
    while waiting and (room is None or _length(piece) + _length(waiting[0]) <= room):
        piece = [*piece, *waiting.popleft()]
    return piece


def _length(messages: Sequence[Message]) -> int:
    return sum(length_of(part) for message in messages for part in message.parts)


def _shorten(message: Message, most: int) -> Message:
    """Return a message of about `most` characters, without reasoning and files."""
    parts = [part for part in message.parts if not isinstance(part, ReasoningPart)]
    each = max(most // max(len(parts), 1), 1)
    return replace(message, parts=tuple(_short(part, each) for part in parts))


def _short(part: Part, most: int) -> Part:
    if isinstance(part, FilePart):
        return TextPart(text=f"[a file, {part.name or part.media_type}]")
    if length_of(part) <= most:
        return part
    match part:
        case TextPart():
            return TextPart(text=_cut(part.text, most))
        case ToolCallPart():
            return replace(part, arguments={"shortened": _cut(json.dumps(part.arguments), most)})
        case ToolResultPart():
            text = part.output if isinstance(part.output, str) else json.dumps(part.output)
            return replace(part, output=_cut(text, most), attachments=())
        case _:
            return part


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [{len(text) - 2 * half} characters left out] {text[-half:] if half else ''}"
