"""A model behind pydantic-ai: complete replies, and opening and closing of its resources."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import messages as theirs
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import Model as TheirModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage

from turnwise import Engine, ModelError, SettingsError, ToolSpec, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.states.messages import Message, Role, TextPart, ToolCallPart
from turnwise.states.names import Executor, StopReason


class Answering:
    """A function model that gives scripted replies and records its requests."""

    def __init__(self, *replies: theirs.ModelResponse) -> None:
        self.replies = list(replies)
        self.asked: list[list[theirs.ModelMessage]] = []
        self.info: list[AgentInfo] = []

    def __call__(self, messages: list[theirs.ModelMessage], info: AgentInfo) -> theirs.ModelResponse:
        self.asked.append(list(messages))
        self.info.append(info)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def model(self, **options: Any) -> PydanticAIModel:
        return PydanticAIModel(FunctionModel(self, model_name="brain"), **options)


def response(*parts: theirs.ModelResponsePart, **fields: Any) -> theirs.ModelResponse:
    usual: dict[str, Any] = {
        "provider_details": {"finish_reason": "stop"},
        "finish_reason": "stop",
        "usage": RequestUsage(input_tokens=10, output_tokens=1),
    }
    return theirs.ModelResponse(list(parts), **usual | fields)


def message(role: Role, text: str) -> Message:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Message(id=role, role=role, parts=(TextPart(text=text),), turn=1, step=1, created_at=at)


def request(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(purpose="step", chat_id="c", messages=list(messages or (message("user", "Hi."),)), **fields)


async def test_generate_sends_tools_and_parameters() -> None:
    answering = Answering(response(theirs.TextPart("Hello."), theirs.ToolCallPart("add", {"a": 1}, "c1")))
    tools = (ToolSpec("add", "Add.", {"type": "object", "properties": {}}),)
    model = answering.model(settings={"seed": 7, "temperature": 1})
    reply = await model.generate(request(tools=tools, parameters={"temperature": 0.5}))
    assert reply.parts == (TextPart(text="Hello."), ToolCallPart(call_id="c1", name="add", arguments={"a": 1}))
    assert reply.finish.stop_reason is StopReason.end_turn
    (info,) = answering.info
    assert [tool.name for tool in info.function_tools] == ["add"]
    assert (info.model_settings.get("seed"), info.model_settings.get("temperature")) == (7, 0.5)


async def test_paused_reply_is_continued() -> None:
    paused = response(
        theirs.TextPart("I search."),
        theirs.NativeToolCallPart("web", {"query": "turn"}, "w1", provider_name="function"),
        state="suspended",
    )
    found = theirs.NativeToolReturnPart("web", "hit", "w1", provider_name="function")
    answering = Answering(paused, response(theirs.TextPart("Found."), found))
    reply = await answering.model().generate(request())
    assert len(answering.asked) == 2
    assert answering.asked[1] == [*answering.asked[0], paused]
    assert [part.type for part in reply.parts] == ["text", "tool_call", "tool_result", "text"]
    assert (reply.calls[0].executor, reply.calls[0].arguments) == (Executor.provider, {"query": "turn"})
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (20, 2)


async def test_continuations_of_a_paused_reply_are_limited() -> None:
    answering = Answering(response(theirs.TextPart("."), state="suspended"))
    reply = await answering.model().generate(request())
    assert 1 < len(answering.asked) < 100
    assert reply.text == "." * len(answering.asked)
    assert reply.usage.input_tokens == 10 * len(answering.asked)


async def test_failures_of_call_and_of_parameters_are_classified() -> None:
    def failing(_messages: list[theirs.ModelMessage], _info: AgentInfo) -> theirs.ModelResponse:
        raise RuntimeError("odd")

    with pytest.raises(ModelError):
        await PydanticAIModel(FunctionModel(failing)).generate(request())
    with pytest.raises(ModelError, match="unknown parameters"):
        await Answering(response()).model().generate(request(parameters={"heat": 1}))


def _down(_messages: list[theirs.ModelMessage], _info: AgentInfo) -> theirs.ModelResponse:
    raise ModelHTTPError(529, "down")


async def _streamed(_messages: list[theirs.ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    yield "Hel"
    yield "lo."


async def _down_at_once(_messages: list[theirs.ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    raise ModelHTTPError(529, "down")
    yield ""


@tool(name="look")
async def _look() -> str:
    """Look around."""
    return "seen"


SEVERAL = FallbackModel(
    FunctionModel(_down, stream_function=_down_at_once),
    FunctionModel(Answering(response(theirs.TextPart("Hello."))), stream_function=_streamed, model_name="second"),
)


@pytest.mark.parametrize("model", [SEVERAL, FunctionModel(stream_function=_streamed)])
async def test_models_of_pydantic_ai_for_tests_stream(model: TheirModel) -> None:
    """They give no finish reason. A fallback model answers alone, too, for instance as the summary model."""
    parts = [part async for part in PydanticAIModel(model).stream(request())]
    assert "".join(part.text for part in parts) == "Hello."
    assert (parts[-1].type, parts[-1].stop_reason) == ("finish", StopReason.end_turn)


async def test_fallback_and_test_models_answer_an_engine() -> None:
    """The engine takes a fallback model's models: the message records which of them has answered."""
    assert (await PydanticAIModel(SEVERAL).generate(request())).text == "Hello."
    async with Engine("sqlite://", model=PydanticAIModel(SEVERAL)) as engine:
        answer = (await engine.ask((await engine.create_chat()).id, "Hi.")).messages[-1]
        assert (answer.text, answer.model, len(answer.fallback_from)) == ("Hello.", "second", 1)
    async with Engine("sqlite://", model=PydanticAIModel(TestModel()), tools=[_look]) as engine:
        assert (await engine.ask((await engine.create_chat()).id, "Hi.")).text == '{"look":"seen"}'
    with pytest.raises(SettingsError, match="model: wraps a FallbackModel; wrap each of its models instead"):
        PydanticAIModel(WrapperModel(SEVERAL))
