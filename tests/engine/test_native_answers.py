"""Answers in a schema of the model's own: they are its text, and no answer tool is offered."""

from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from support.engines import OpenEngine
from support.life import NOW
from turnwise import Agent, ClientTool, Engine, Settings, SettingsError, tool
from turnwise.engine.agents.answer_format import ANSWER_TOOL, format_of
from turnwise.engine.prompt.views import erased
from turnwise.engine.subscriptions.turns import answer_in
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ToolFailed
from turnwise.states.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus, Executor, StopReason
from turnwise.testing.strict import StrictModel


class Resolution(BaseModel):
    """How a complaint was resolved."""

    refunded: bool
    cents: int = Field(ge=0, le=1000)

    @field_validator("cents")
    @classmethod
    def _even(cls, cents: int) -> int:
        if cents == 13:
            raise ValueError("no thirteen")
        return cents


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"saw {place}"


RIGHT = '{"refunded": true, "cents": 250}'
CALL = Reply(calls=[Call("final_answer", {"refunded": True, "cents": 250})])


def native(*replies: Any, takes: Any = "always", **options: Any) -> StrictModel:
    return StrictModel(list(replies), takes_answer_schema=takes, **options)


def offered(model: ScriptedModel) -> list[tuple[list[str], bool]]:
    """Return for each step the offered tools, and whether a schema was given."""
    steps = [request for request in model.requests if request.purpose == "step"]
    return [([spec.name for spec in one.tools], one.answer_schema is not None) for one in steps]


async def test_invalid_answer_returns_to_the_model(open_engine: OpenEngine) -> None:
    cents = ('{"refunded": true, "cents": 9999}', '{"refunded": true, "cents": 13}')
    model = native("Sure!", '{"refunded": true}', *cents, "[1]", RIGHT)
    agent = Agent("support", model, output=Resolution, settings=Settings(answer_retries=5))
    async with open_engine(None, agents=[agent]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hi")
        assert result.output == Resolution(refunded=True, cents=250)
        assert [record.trigger for record in await engine.audit(chat.id)].count("step_finished") == 6
        assert [message.text for message in result.messages if message.role == "user"] == ["hi"]
    sent = [request.messages[-1].text for request in model.requests[1:]]
    assert all(one.endswith("Give your final answer again, as JSON of the schema and nothing else.") for one in sent)
    problems = ["no JSON object (5 characters)", "missing cents", "must satisfy maximum: 1000", "thirteen", "no JSON"]
    assert [problem in one for problem, one in zip(problems, sent, strict=True)] == [True] * 5
    assert not any("9999" in one for one in sent)
    assert model.faults == []


async def test_invalid_tool_answer_returns_to_the_model(open_engine: OpenEngine) -> None:
    wrong = [
        Reply(calls=[Call("final_answer", arguments)])
        for arguments in ({"refunded": True}, {"refunded": True, "cents": -1})
    ]
    model = StrictModel(["Sure!", *wrong, CALL])
    async with open_engine(None, agents=[Agent("support", model, tools=[look], output=Resolution)]) as engine:
        result = await engine.ask((await engine.create_chat()).id, "hi")
        assert (result.output, result.stop_reason) == (Resolution(refunded=True, cents=250), "stop_after_tool")
        assert [message.text for message in result.messages if message.role == "user"] == ["hi"]
    demand, *refused = [request.messages[-1] for request in model.requests[1:]]
    assert (demand.role, demand.text) == ("user", "Give your final answer by calling the tool final_answer.")
    assert [message.result and message.result.is_error for message in refused] == [True, True]
    assert "cents" in str([message.result.output for message in refused if message.result])


@pytest.mark.parametrize(
    ("takes", "wrong", "fault"),
    [
        ("always", "Sure!", "The answer is no JSON object (5 characters)."),
        ("always", Reply(""), "The answer is no JSON object (0 characters)."),
        ("always", '{"refunded": true}', "The answer does not fit: arguments: missing cents."),
        ("always", Reply(calls=[Call("final_answer", "{oops")]), "Not run: the arguments of final_answer"),
        (None, "Sure!", "The answer is text, and no call of final_answer."),
        (None, Reply(calls=[Call("final_answer", {"refunded": True, "cents": -1})]), "cents: "),
    ],
)
async def test_only_invalid_answers_end_in_error(open_engine: OpenEngine, takes: Any, wrong: Any, fault: str) -> None:
    """The chat's error and its explanation name the field and the problem."""
    model = native(*[wrong] * 30, takes=takes)
    agent = Agent("support", model, output=Resolution, settings=Settings(answer_retries=2))
    async with open_engine(None, agents=[agent]) as engine:
        result = await engine.ask((await engine.create_chat()).id, "hi")
        assert (result.chat.state, result.output, len(model.requests)) == ("error", None, 3)
        assert result.chat.last_error.kind == "invalid_answer"
        explanation = await engine.explain(result.chat.id)
        assert fault in result.chat.last_error.message
        assert fault in explanation.reason
        assert explanation.last_error is not None
        assert explanation.last_error.detail is not None
        assert fault in explanation.last_error.detail
        assert "-1" not in explanation.reason


@pytest.mark.parametrize("arguments", [None, '{"refunded": true, "cents": 25', ""])
@pytest.mark.parametrize(
    ("word", "reason"), [("length", "max_tokens"), ("refusal", "content_filter"), ("abort", "unknown")]
)
async def test_truncated_answer_is_none(open_engine: OpenEngine, word: str, reason: str, arguments: str | None) -> None:
    """A truncated text may be valid, too: `1` of `12`. So may a call that is closed there: `25` of `2500`."""
    if arguments is None:
        model, output = native(Reply('{"answer": 1}', stop_reason=word)), int
    else:
        model, output = StrictModel([Reply(calls=[Call("final_answer", arguments)], stop_reason=word), "?"]), Resolution
    async with open_engine(None, agents=[Agent("support", model, output=output)]) as engine:
        result = await engine.ask((await engine.create_chat()).id, "hi")
        assert (result.output, result.stop_reason, result.chat.state) == (None, reason, "waiting")
        assert [call for message in result.messages for call in message.calls] == []
        assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("takes", "mode", "tools", "parameters", "expected"),
    [
        ("always", None, [look], {}, (["look"], True)),
        ("always", "tool", [look], {}, (["look", "final_answer"], False)),
        ("without_tools", None, [look], {}, (["look", "final_answer"], False)),
        ("without_tools", None, [], {}, ([], True)),
        (None, None, [], {}, (["final_answer"], False)),
        ("always", None, [look], {"tool_choice": "required"}, (["look", "final_answer"], False)),
        ("always", None, [look], {"tool_choice": "none"}, (["look"], True)),
    ],
)
async def test_output_mode_follows_model_and_agent(
    open_engine: OpenEngine, takes: Any, mode: Any, tools: Any, parameters: Any, expected: Any
) -> None:
    model = native(RIGHT if expected[1] else CALL, takes=takes)
    settings = Settings(parameters=parameters)
    agent = Agent("support", model, tools=tools, output=Resolution, output_mode=mode, settings=settings)
    async with open_engine(None, agents=[agent]) as engine:
        result = await engine.ask((await engine.create_chat()).id, "hi")
        assert result.output == Resolution(refunded=True, cents=250)
    assert offered(model) == [expected]


async def test_output_mode_follows_the_chats_tools_and_model(open_engine: OpenEngine) -> None:
    """With its client's tools a model may not follow a schema."""
    model = native(CALL, RIGHT, takes="without_tools")
    agent = Agent("support", model, output=Resolution)
    sign = ClientTool("sign", "Sign.", {"type": "object"})
    async with open_engine(None, agents=[agent]) as engine:
        for client_tools in ([sign], []):
            chat = await engine.create_chat(client_tools=client_tools)
            assert (await engine.ask(chat.id, "hi")).output == Resolution(refunded=True, cents=250)
    assert offered(model) == [(["final_answer", "sign"], False), ([], True)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ScriptedModel([]), "output": int}, "keeps no answers to a schema; choose"),
        ({"model": native(takes="without_tools"), "tools": [look], "output": int}, "beside tools"),
        ({"model": native()}, "output_mode='native' needs output="),
        ({"model": native(), "output": int, "output_mode": "text"}, "must be one of 'native', 'tool'"),
    ],
)
def test_impossible_output_mode_is_refused(options: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        Engine("sqlite://", agents=[Agent("a", **{"output_mode": "native", **options})])


@pytest.mark.parametrize(
    ("output", "closed"),
    [
        (Resolution, True),
        (list[Resolution], True),
        (tuple[int, str], True),
        (list[dict[str, int]], False),
        (Any, False),
        ({"type": "object", "properties": {"a": {"type": "object", "additionalProperties": True}}}, False),
        ({"type": "object", "properties": {"a": {"title": "A"}}}, False),
        ({"type": "object", "properties": {"a": {"enum": [1, 2]}}}, True),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}, False),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^b": {}}}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "object"}]}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, False),
        ({"type": "array", "prefixItems": [{"type": "object"}]}, False),
        ({"type": "integer", "not": {"type": "object"}}, False),
    ],
)
def test_open_schemas_use_the_answer_tool(output: Any, *, closed: bool) -> None:
    """Some providers drop the fields that a schema does not name, so the answer would come out empty."""
    assert format_of("a", output).is_closed is closed


def test_output_that_is_no_object_is_wrapped() -> None:
    schema = format_of("a", list[Resolution]).tool.schema
    assert (schema["required"], schema["additionalProperties"]) == (["answer"], False)
    assert schema["properties"] == {"answer": {"items": {"$ref": "#/$defs/Resolution"}, "type": "array"}}
    assert set(schema["$defs"]) == {"Resolution"}
    assert "$defs" not in format_of("a", int).tool.schema


async def test_answer_tool_validates_and_may_run_again() -> None:
    form = format_of("a", Resolution)
    assert await form.tool.run(refunded=True, cents=12) == "Accepted."
    with pytest.raises(ToolFailed, match="thirteen"):
        await form.tool.run(refunded=True, cents=13)
    assert (form.tool.parallel_safe, form.tool.crash, form.tool.stop_after) == (True, "at_least_once", True)
    assert form.tool.description == "How a complaint was resolved."
    assert format_of("a", int).tool.description == "Give the final answer. This ends the turn."


def test_only_the_last_text_is_the_answer() -> None:
    """The turn ended with another text, which today's form does not accept."""

    def message(text: str) -> Message:
        return Message(id=text, role="assistant", parts=(TextPart(text=text),), turn=1, step=1, created_at=NOW)

    form = format_of("a", Resolution)
    assert answer_in([message("{}"), message(RIGHT)], lambda _: form, "a", StopReason.end_turn) == Resolution(
        refunded=True, cents=250
    )
    assert answer_in([message(RIGHT), message("{}")], lambda _: form, "a", StopReason.end_turn) is None


@pytest.mark.parametrize("by", ["text", "call"])
def test_erased_reply_gives_no_answer(by: str) -> None:
    """Nor does the text before it, which was not the answer."""

    class Verdict(BaseModel):
        verdict: str = "harmless"

    def message(name: str, *parts: Part) -> Message:
        return Message(id=name, role="assistant", parts=parts, turn=1, step=1, created_at=NOW)

    taken = ToolResultPart(call_id="c", name=ANSWER_TOOL, output="taken", outcome=CallStatus.succeeded)
    result = Message(id="m3", role="tool", parts=(taken,), turn=1, step=1, created_at=NOW)
    asks = ToolCallPart(call_id="c", name=ANSWER_TOOL, arguments={"verdict": "fraud"})
    text = TextPart(text='{"verdict": "fraud"}')
    turn = [message("m2", asks), result, message("m4", text)] if by == "text" else [message("m2", asks), result]
    form = format_of("a", Verdict)
    assert answer_in(turn, lambda _: form, "a", StopReason.end_turn) == Verdict(verdict="fraud")
    blank = [erased(one) if one is turn[-1] or by == "call" else one for one in turn]
    assert answer_in(blank, lambda _: form, "a", StopReason.end_turn) is None


@pytest.mark.parametrize("executor", [None, *Executor])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("stopped", [StopReason.interrupted, StopReason.error])
@pytest.mark.parametrize("word", ["stop", "length", "abort"])
def test_complete_text_is_the_answer_of_a_stopped_turn(
    stopped: StopReason, executor: Executor | None, word: str, *, partial: bool
) -> None:
    """A broken-off text is none, nor is one with open calls; a call that the provider has answered is closed."""
    calls = () if executor is None else (ToolCallPart(call_id="c", name="look", arguments={}, executor=executor),)
    parts = (TextPart(text=RIGHT), *calls)
    of_turn: dict[str, Any] = {"id": "m2", "role": "assistant", "turn": 1, "step": 1, "created_at": NOW}
    message = Message(parts=parts, partial=partial, finish_reason=word, **of_turn)
    is_the_end = word == "stop" and not partial and executor in (None, Executor.provider)
    answer = answer_in([message], lambda _: format_of("a", Resolution), "a", stopped)
    assert answer == (Resolution(refunded=True, cents=250) if is_the_end else None)


async def test_answer_tool_is_accepted_in_native_mode(open_engine: OpenEngine) -> None:
    async with open_engine(None, agents=[Agent("support", native(CALL), output=Resolution)]) as engine:
        result = await engine.ask((await engine.create_chat()).id, "hi")
        assert (result.output, result.stop_reason) == (Resolution(refunded=True, cents=250), "stop_after_tool")


@pytest.mark.parametrize("mode", ["native", "tool"])
@pytest.mark.parametrize("wrong", ["prose", "call"])
async def test_compaction_keeps_the_question_of_a_refused_answer(
    open_engine: OpenEngine, mode: Any, wrong: str
) -> None:
    """The user still waits for the answer to that very question, so no summary replaces it."""
    full = {"usage": (90, 5)}
    refused = Reply("Let me think.", **full) if wrong == "prose" else Reply(calls=[Call("final_answer", {})], **full)
    right = Reply(RIGHT) if mode == "native" else CALL
    model = native(refused, right, takes="always" if mode == "native" else None, context_limit=100)
    async with open_engine(None, agents=[Agent("support", model, output=Resolution)]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "My parcel is broken")
        assert result.output == Resolution(refunded=True, cents=250)
    assert [request.purpose for request in model.requests] == ["step", "summary", "step"]
    summary, question, demand = model.requests[-1].messages
    assert summary.text.endswith("summary")
    assert (question.text, demand.role) == ("My parcel is broken", "user")
    assert demand.text.startswith("Give your final answer")
    assert model.faults == []
