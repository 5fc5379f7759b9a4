"""For anything that a model streams or raises, the chat rests, its log verifies, and the next message is answered."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final

import anyio
import pytest
from msgspec.structs import replace

from turnwise import RESTING, Engine, ModelPart, ModelReply, ModelRequest, RetryPolicy, Settings, TextPart, Usage, tool
from turnwise.states.model_errors import ModelError

CALL: Final = {"id": "call_1", "name": "search", "arguments": {"query": "x"}, "metadata": {"k": 1}}
PARTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "text_delta": {"text": "hi"},
    "reasoning_delta": {"text": "hm", "signature": "s"},
    "tool_call_start": {"id": "call_1", "name": "search"},
    "tool_call_delta": {"id": "call_1", "arguments": "{}"},
    "tool_call": {**CALL, "executor": "local"},
    "provider_result": {"call_id": "call_1", "output": 1, "metadata": {"k": 1}},
    "source": {"url": "https://example.org", "title": "t", "metadata": {"k": 1}},
    "file": {"media_type": "image/png", "data": "aGk=", "name": "cat.png"},
    "usage": {"usage": Usage(input_tokens=1)},
    "finish": {"stop_reason": "end_turn", "usage": None, "context_limit": 9000, "metadata": {"response_id": "r"}},
}
"""The kinds of parts, each with its relevant fields."""
BEFORE: Final = {
    "tool_call_delta": [ModelPart("tool_call_start", id="call_1", name="search")],
    "provider_result": [ModelPart("tool_call", **{**CALL, "executor": "provider"})],
}
"""Parts that must precede another part."""
ERROR: Final = {"kind": "network", "retryable": False, "retry_after": 1, "status": 500, "message": "It broke."}
REPLY: Final = {"parts": (TextPart(text="hi"),), "finish": ModelPart("finish", stop_reason="end_turn")}
ODD: Final = {"an object": object(), "10**400": 10**400, "NUL": "a\0b", "half a character": "\ud800"}
"""One value of each kind."""
PATIENCE: Final = 60
"""Seconds after which a turn hangs."""
NUMBERS: Final = (1.5, 9e3, float("nan"), True, -5, 10**400, {"a": [1]})
"""Odd values that a provider's adapter may report for whole numbers or words."""
pytestmark = pytest.mark.deep
Script = Callable[[], list[ModelPart]]


class OddModel:
    """A model that gives one scripted reply, then answers normally."""

    name = provider = "odd"
    context_limit = None

    def __init__(self) -> None:
        self.script: Script | None = None
        self.summary: Mapping[str, Any] = REPLY

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        script, self.script = self.script, None
        ok = [ModelPart("text_delta", text="ok"), ModelPart("finish", stop_reason="end_turn")]
        for part in ok if script is None else script():
            yield part

    async def generate(self, request: ModelRequest) -> ModelReply:
        summary, self.summary = self.summary, REPLY
        return ModelReply(**summary)


def odd_parts() -> Iterator[tuple[str, Script]]:
    """Yield replies with an odd value in each field of each kind of part, and errors with one in each of theirs."""
    finish = ModelPart("finish", stop_reason="end_turn")
    for kind, fields in PARTS.items():
        for field in ("type", *fields):
            for name, odd in ODD.items():
                part = ModelPart(**{"type": kind, **fields, field: odd})
                yield f"{kind}({field}: {name})", lambda part=part, kind=kind: [*BEFORE.get(kind, ()), part, finish]
    for number in NUMBERS:
        for fields in _ends(number):
            end = ModelPart("finish", **fields)
            yield f"finish({fields})", lambda end=end: [ModelPart("text_delta", text="hi"), end]
    for field in ERROR:
        for name, odd in ODD.items():
            yield f"ModelError({field}: {name})", lambda field=field, odd=odd: _raised(ERROR | {field: odd})


def _ends(number: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a reply's end with this number in one of them: `replace` checks none."""
    yield {"context_limit": number}
    for word in ("reason", "response_id"):
        yield {"metadata": {word: number}}
    for figure in ("input_tokens", "partial", "compaction"):
        yield {"usage": replace(Usage(input_tokens=1, output_tokens=1), **{figure: number})}


def _raised(fields: Mapping[str, Any]) -> list[ModelPart]:
    raise ModelError(**fields)


def odd_summaries() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the fields of whole replies, each with an odd value in one of them."""
    for field in REPLY:
        for name, odd in ODD.items():
            yield f"ModelReply({field}: {name})", {**REPLY, field: odd}
    for number in NUMBERS:
        for fields in _ends(number):
            yield f"ModelReply(finish: {fields})", {**REPLY, "finish": ModelPart("finish", **fields)}


@tool
async def search(query: str) -> str:
    """Search."""
    return query


async def test_odd_replies_and_errors_leave_the_chat_usable() -> None:
    model, wrong = OddModel(), []
    settings = Settings(retry=RetryPolicy(attempts=1))
    async with Engine("sqlite://", model=model, tools=[search], settings=settings) as engine:
        for label, script in odd_parts():
            model.script = script
            chat = await engine.create_chat()
            try:
                await _spoken(engine, chat.id)
            except Exception as error:  # noqa: BLE001 - reported together
                wrong.append(f"{label}: {error!r}")
        for label, summary in odd_summaries():
            chat = await engine.create_chat()
            await engine.ask(chat.id, "hi")
            model.summary = summary
            await engine.request_compaction(chat.id)
            try:
                await _spoken(engine, chat.id)
            except Exception as error:  # noqa: BLE001 - as above
                wrong.append(f"{label}: {error!r}")
    assert wrong == []


async def _spoken(engine: Engine, chat_id: str) -> None:
    """Send messages until the chat answers as usual."""
    with anyio.fail_after(PATIENCE):
        await engine.wait(chat_id)
        answer = await engine.ask(chat_id, "hi")
        assert answer.chat.state in RESTING
        await engine.messages(chat_id)
        assert (await engine.verify(chat_id)).ok
        answer = await engine.ask(chat_id, "and now?")
        assert (answer.text, answer.chat.state) == ("ok", "waiting")
