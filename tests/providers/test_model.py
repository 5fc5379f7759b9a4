"""A model behind pydantic-ai, asked for whole replies, and held open and closed with what it holds."""

from __future__ import annotations

from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import pytest
from msgspec.structs import replace
from pydantic_ai import messages as theirs
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage

from turnwise import ModelError, SettingsError, ToolSpec
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.states.messages import Message, Role, TextPart, ToolCallPart
from turnwise.states.names import Executor, StopReason


class Answering:
    """A function model that gives the replies of a script and remembers what it was asked."""

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


def said(role: Role, text: str) -> Message:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Message(id=role, role=role, parts=(TextPart(text=text),), turn=1, step=1, created_at=at)


def request(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(purpose="step", chat_id="c", messages=list(messages or (said("user", "Hi."),)), **fields)


async def test_a_whole_reply_comes_with_what_was_asked_for() -> None:
    answering = Answering(response(theirs.TextPart("Hello."), theirs.ToolCallPart("add", {"a": 1}, "c1")))
    tools = (ToolSpec("add", "Add.", {"type": "object", "properties": {}}),)
    model = answering.model(settings={"seed": 7, "temperature": 1})
    reply = await model.generate(request(tools=tools, parameters={"temperature": 0.5}))
    assert reply.parts == (TextPart(text="Hello."), ToolCallPart(call_id="c1", name="add", arguments={"a": 1}))
    assert reply.finish.stop_reason is StopReason.end_turn
    (info,) = answering.info
    assert [tool.name for tool in info.function_tools] == ["add"]
    assert info.model_settings is not None
    assert (info.model_settings.get("seed"), info.model_settings.get("temperature")) == (7, 0.5)


async def test_a_reply_that_the_provider_paused_is_asked_to_go_on() -> None:
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
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (20, 2)


async def test_a_provider_that_pauses_for_ever_is_not_asked_for_ever() -> None:
    answering = Answering(response(theirs.TextPart("."), state="suspended"))
    reply = await answering.model().generate(request())
    assert 1 < len(answering.asked) < 100
    assert reply.text == "." * len(answering.asked)
    assert reply.usage is not None
    assert reply.usage.input_tokens == 10 * len(answering.asked)


async def test_where_a_part_was_made_is_kept_even_if_it_has_no_address() -> None:
    reply = await Answering(response(theirs.TextPart("a", provider_name="function"))).model().generate(request())
    assert reply.parts[0].metadata == {"provider": "function", "endpoint": ""}


async def test_a_reminder_is_the_users_word_for_a_model_of_which_nothing_is_known() -> None:
    answering = Answering(response(theirs.TextPart("a")))
    await answering.model().generate(request(said("user", "Hi."), said("system", "Be quick.")))
    (asked,) = answering.asked[0]
    assert [part.part_kind for part in asked.parts] == ["user-prompt", "user-prompt"]


async def test_a_failure_is_classified_whenever_it_comes() -> None:
    def failing(_messages: list[theirs.ModelMessage], _info: AgentInfo) -> theirs.ModelResponse:
        raise RuntimeError("odd")

    with pytest.raises(ModelError):
        await PydanticAIModel(FunctionModel(failing)).generate(request())
    with pytest.raises(ModelError, match="unknown parameters"):
        await Answering(response()).model().generate(request(parameters={"heat": 1}))


def test_a_model_says_what_it_is_and_how_much_it_takes() -> None:
    model = Answering(response()).model()
    assert (model.name, model.provider, model.context_limit) == ("brain", "function", None)
    assert Answering(response()).model(context_limit=9).context_limit == 9


def test_a_part_is_kept_with_the_address_at_which_it_was_made() -> None:
    model = PydanticAIModel("openai-compatible:local@http://127.0.0.1:1/v1")
    assert model._origin.endpoint == "http://127.0.0.1:1/v1/"


class Held(FunctionModel):
    """Notes that it was opened, and with what it was closed."""

    held: tuple[object, ...] = ()

    async def __aenter__(self) -> Self:
        self.held += ("opened",)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.held += (exc,)


async def test_the_providers_connections_are_held_and_closed_with_the_model() -> None:
    inner = Held(Answering(response()))
    model = PydanticAIModel(inner)
    error = ValueError("mine")
    assert await model.__aenter__() is model
    assert inner.held == ("opened",)
    await model.__aexit__(type(error), error, None)
    assert inner.held == ("opened", error)


class Mistral(FunctionModel):
    """A model that says it is Mistral's."""

    @property
    def system(self) -> str:
        """Name the provider."""
        return "mistral"


@pytest.mark.parametrize(("kind", "length"), [(FunctionModel, 29), (Mistral, 9)])
async def test_ids_of_calls_that_another_provider_gave_are_as_this_one_wants_them(
    kind: type[FunctionModel], length: int
) -> None:
    answering = Answering(response(theirs.TextPart("Hello.")))
    call = ToolCallPart(call_id=f"chatcmpl-tool-{'a' * 32}", name="look", arguments={})
    asked = replace(said("assistant", ""), parts=(call,))
    await PydanticAIModel(kind(answering, model_name="brain")).generate(request(said("user", "Hi."), asked))
    (sent,) = (
        part for message in answering.asked[0] for part in message.parts if isinstance(part, theirs.ToolCallPart)
    )
    assert len(sent.tool_call_id) == length


def test_a_choice_between_models_is_refused() -> None:
    """Nobody could say what may be sent to it."""
    several = FallbackModel(FunctionModel(Answering()), FunctionModel(Answering()))
    for model in (several, WrapperModel(several)):
        with pytest.raises(SettingsError, match="model: must be one model: a FallbackModel does not say"):
            PydanticAIModel(model)
