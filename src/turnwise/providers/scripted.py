"""A model that answers from a script and records its requests: for tests and demonstrations."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import force_setattr, replace

from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest, ProviderDefinition, TakesAnswerSchema
from turnwise.providers.reply_builder import join
from turnwise.states.errors import InvalidArgument
from turnwise.states.model_errors import ModelError
from turnwise.states.names import StopReason
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Count, Duration, Name, Positive
from turnwise.states.values.plain import shown
from turnwise.states.values.values import CheckedCall, Value

Sleep = Callable[[float], Awaitable[None]]
"""Waits so many seconds."""

_sleep: Final[ContextVar[Sleep]] = ContextVar("turnwise_sleep", default=anyio.sleep)


async def sleep(seconds: float) -> None:
    """Wait so many seconds by the clock of the engine that asks, or by the machine's if none does."""
    await _sleep.get()(seconds)


def sleep_by(engine_sleep: Sleep) -> None:
    """Let `sleep` wait by an engine's clock from now on, in this task and in those that it begins."""
    _sleep.set(engine_sleep)


class Call(Value, metaclass=CheckedCall, frozen=True):
    """A tool call in a scripted reply. Without an `id` it gets `call_1`, `call_2` and so on, in the order of use."""

    name: str
    arguments: Mapping[str, Any] | str
    """A mapping, or JSON text that is sent as it is, right or wrong."""
    id: str | None = None


class _Text(Value, metaclass=CheckedCall, frozen=True):
    text: str = ""


class Reply(_Text, frozen=True, kw_only=True):
    """One scripted reply: reasoning, then text, then calls, then the finish; or exactly `parts`.

    It can go wrong on purpose. The two `_after` count the parts of any type that are still sent.
    """

    reasoning: str = ""
    signature: str | None = None
    calls: Sequence[Call] = ()
    usage: Usage | Mapping[str, Any] | tuple[Count, Count] | None = None
    """A pair is (input tokens, output tokens)."""
    stop_reason: StopReason | str | None = None
    """`None` is `end_turn`."""
    chunks: Positive | Sequence[str] | None = None
    """How the text is cut into deltas: their length, or the deltas themselves. `None` sends it as one."""
    parts: Sequence[ModelPart] | None = None
    """The exact parts to send, the finish included; every other part of the reply is ignored."""
    delay: Duration = 0
    """Seconds before each part after the first, by the clock of the engine that asks."""
    first_delay: Duration = 0
    """Seconds before the first part."""
    stall_after: Count | None = None
    """Send nothing more, without end, after so many parts."""
    error: BaseException | None = None
    """What to raise: at once, or after `error_after` parts."""
    error_after: Count | None = None
    """Raise `error`, or else a retryable server error, after so many parts."""

    def __post_init__(self) -> None:
        if self.parts is not None:
            force_setattr(self, "parts", tuple(self.parts))
        _usage(self)  # or a misspelt figure would be missed only when the reply is given


Line = str | Reply | Callable[[ModelRequest], "Reply | str"]
"""A line of a script: a reply, its bare text, or a function of the request that gives either."""


class ScriptedModel:
    """Answers each step with the next of `replies`; a single reply, not in a list, answers every step.

    It answers summaries with `summary`, and titles with `title`, or else its own name. Delays pass by the clock of the
    engine that asks, or as `sleep` says; between parts that have none, other tasks get their turn. With
    `takes_answer_schema` it plays a model that keeps its answers to a schema, which stands in its requests; what it
    answers is what the script says.

    Raises:
        ModelError: of kind `bad_request`, not retryable: a step was asked for after the last reply.
    """

    @checked
    def __init__(  # noqa: PLR0913 - what a script says
        self,
        replies: Line | Iterable[Line],
        *,
        summary: Line = "summary",
        title: Line | None = None,
        context_limit: Count | None = None,
        name: Name = "scripted",
        provider: Name = "scripted",
        takes_answer_schema: TakesAnswerSchema | None = None,
        sleep: Sleep = sleep,
    ) -> None:
        self.name = name
        self.provider = provider
        self.context_limit = context_limit
        self.takes_answer_schema = takes_answer_schema
        self.searches_web = True
        self.requests: list[ModelRequest] = []
        """Every request, in order, as it stood when it came."""
        self._replies: Iterator[Line] = _lines(replies)
        self._summary = summary
        self._title = title
        self._sleep = sleep
        self._used = 0
        self._call_numbers = itertools.count(1)

    def then(self, *replies: Line) -> None:
        """Answer further steps with these replies, after those that the script has."""
        self._replies = itertools.chain(self._replies, replies)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the parts of the next reply, with its delays and failures."""
        copied = replace(request, messages=list(request.messages), parameters=dict(request.parameters))
        self.requests.append(copied)
        reply = self._next_reply(request)
        parts = self._parts(reply)
        for count, part in enumerate(parts):
            await _fail_if_due(reply, count)
            seconds = reply.delay if count else reply.first_delay
            await (self._sleep(seconds) if seconds > 0 else checkpoint())
            yield part
        await _fail_if_due(reply, len(parts))

    def refuses(self, definition: ProviderDefinition) -> str | None:  # noqa: ARG002 - any will do
        """Return `None`: a script accepts every tool of its `provider`."""
        return None

    async def generate(self, request: ModelRequest) -> ModelReply:
        """Return the next reply whole, after its delays; a reply that fails on the way fails as a whole."""
        return join([part async for part in self.stream(request)])

    def _next_reply(self, request: ModelRequest) -> Reply:
        match request.purpose:
            case "summary":
                line = self._summary
            case "title":
                line = self.name if self._title is None else self._title
            case "step":
                line = self._next_line()
        if callable(line):
            line = line(request)
        if isinstance(line, str):
            return Reply(line)
        if not isinstance(line, Reply):
            raise InvalidArgument("replies", f"must be replies or their text; one was {shown(line)}")
        return line

    def _next_line(self) -> Line:
        line = next(self._replies, None)
        if line is None:
            replies = "1 reply" if self._used == 1 else f"{self._used} replies"
            raise ModelError("bad_request", message=f"the script had {replies}, and the model was asked for one more")
        self._used += 1
        return line

    def _parts(self, reply: Reply) -> Sequence[ModelPart]:
        if reply.parts is not None:
            return tuple(reply.parts)
        parts = [ModelPart("text_delta", text=piece) for piece in _pieces(reply)]
        if reply.reasoning or reply.signature is not None:
            parts.insert(0, ModelPart("reasoning_delta", text=reply.reasoning, signature=reply.signature))
        for call in reply.calls:
            call_id = call.id or f"call_{next(self._call_numbers)}"
            parts.append(ModelPart("tool_call", id=call_id, name=call.name, arguments=call.arguments))
        stop_reason = reply.stop_reason or StopReason.end_turn
        finish = ModelPart("finish", stop_reason=stop_reason, usage=_usage(reply), context_limit=self.context_limit)
        return [*parts, finish]


def by_step(replies: Sequence[Reply | str]) -> Callable[[ModelRequest], Reply | str]:
    """Return a line that answers each step of a chat with the reply of its number.

    A script in a list goes on after a crash where it stood. A provider does not: asked for the same step, it answers
    the same. Give each `Call` an id of its own, so that a step that is asked again names the same calls.
    """

    def reply(request: ModelRequest) -> Reply | str:
        if request.step > len(replies):
            message = f"the script has {len(replies)} steps, and the model was asked for step {request.step}"
            raise ModelError("bad_request", message=message)
        return replies[request.step - 1]

    return reply


def _lines(replies: Line | Iterable[Line]) -> Iterator[Line]:
    if isinstance(replies, (str, Reply)) or callable(replies):
        return itertools.repeat(replies)
    return iter(list(replies) if isinstance(replies, Sized) else replies)


async def _fail_if_due(reply: Reply, count: int) -> None:
    if count == reply.stall_after:
        await anyio.sleep_forever()
    error_after = 0 if reply.error is not None and reply.error_after is None else reply.error_after
    if count == error_after:
        raise ModelError("server_error", message="scripted") if reply.error is None else reply.error


def _pieces(reply: Reply) -> Sequence[str]:
    if isinstance(reply.chunks, int):
        return [reply.text[start : start + reply.chunks] for start in range(0, len(reply.text), reply.chunks)]
    if reply.chunks is not None:
        return reply.chunks
    return [reply.text] if reply.text else []


def _usage(reply: Reply) -> Usage | None:
    match reply.usage:
        case (input_tokens, output_tokens):
            return Usage(input_tokens=input_tokens, output_tokens=output_tokens)
        case Mapping() as counts:
            return Usage(**counts)
        case usage:
            return usage
