from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import anyio
import pytest

from turnwise.providers.protocol import Model, ModelPart, ModelRequest, Purpose
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import InvalidArgument, ModelError
from turnwise.states.messages import ReasoningPart, TextPart, ToolCallPart
from turnwise.states.names import StopReason
from turnwise.states.usage import Usage

_: Model = ScriptedModel([])


class Sleeps:
    """Notes how long it was asked to sleep, and does not."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)


def request(purpose: Purpose = "step", **more: Any) -> ModelRequest:
    return ModelRequest(purpose=purpose, chat_id="c", messages=[], **more)


async def parts_of(model: ScriptedModel, asked: ModelRequest | None = None) -> list[ModelPart]:
    return [part async for part in model.stream(asked or request())]


async def text_of(model: ScriptedModel, purpose: Purpose = "step") -> str:
    return (await model.generate(request(purpose))).text


async def test_replies_answer_the_steps_in_order() -> None:
    model = ScriptedModel(["one", Reply("two"), lambda asked: f"step {asked.step}", lambda _: Reply("four")])
    assert [await text_of(model) for _ in range(2)] == ["one", "two"]
    assert (await model.generate(request(step=7))).text == "step 7"
    assert await text_of(model) == "four"


async def test_a_script_that_ran_out_says_how_long_it_was() -> None:
    model = ScriptedModel(["one", "two"])
    await text_of(model)
    await text_of(model)
    with pytest.raises(ModelError, match="the script had 2 replies") as caught:
        await text_of(model)
    assert (caught.value.kind, caught.value.retryable) == ("bad_request", False)


@pytest.mark.parametrize("single", ["again", Reply("again"), lambda _: "again"])
async def test_a_single_reply_answers_every_step(single: Any) -> None:
    model = ScriptedModel(single)
    assert [await text_of(model) for _ in range(3)] == ["again"] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        *({"chunks": 0}, {"delay": -1}, {"delay": math.inf}, {"first_delay": -0.1}, {"first_delay": math.inf}),
        *({"stall_after": -1}, {"error_after": -1}, {"usage": (-1, 2)}),
    ],
)
def test_a_reply_that_makes_no_sense_is_refused_when_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Reply("hi", **wrong)


@pytest.mark.parametrize(
    ("usage", "problem"),
    [
        ({"input_token": 9}, "did you mean 'input_tokens'"),
        ({"input_tokens": "9"}, "input_tokens: Expected `int | null`"),
    ],
)
def test_usage_that_makes_no_sense_is_refused_when_the_reply_is_written(usage: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Reply("hi", usage=usage)


@pytest.mark.parametrize("wrong", [{"context_limit": -1}, {"name": ""}, {"provider": " "}])
def test_a_scripted_model_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        ScriptedModel("hi", **wrong)


async def test_summaries_and_titles_use_up_no_reply() -> None:
    model = ScriptedModel(["one"], summary=Reply("so far", usage=(5, 2)))
    assert (await model.generate(request("summary"))).usage == Usage(input_tokens=5, output_tokens=2)
    assert await text_of(model, "title") == "scripted"
    assert await text_of(model) == "one"
    assert await text_of(ScriptedModel([]), "summary") == "summary"
    assert await text_of(ScriptedModel([], summary=lambda asked: asked.purpose), "summary") == "summary"


async def test_every_request_is_remembered_as_it_stood_when_it_came() -> None:
    model = ScriptedModel("ok")
    asked = request(parameters={"temperature": 0})
    await parts_of(model, asked)
    await model.generate(request("summary"))
    asked.messages.append("changed")  # type: ignore[arg-type]
    asked.parameters["temperature"] = 1  # type: ignore[index]
    assert [known.purpose for known in model.requests] == ["step", "summary"]
    assert model.requests[0] == dataclasses.replace(asked, messages=[], parameters={"temperature": 0})


async def test_a_reply_is_reasoning_then_text_then_calls_then_the_finish() -> None:
    said = Reply("text", reasoning="hm", signature="s", calls=[Call("f", {"a": 1}, id="x"), Call("g", '{"b"')])
    parts = await parts_of(ScriptedModel(said, context_limit=900))
    assert parts == [
        ModelPart("reasoning_delta", text="hm", signature="s"),
        ModelPart("text_delta", text="text"),
        ModelPart("tool_call", id="x", name="f", arguments={"a": 1}),
        ModelPart("tool_call", id="call_1", name="g", arguments='{"b"'),
        ModelPart("finish", stop_reason=StopReason.end_turn, context_limit=900),
    ]


async def test_calls_without_an_id_are_numbered_through_the_script() -> None:
    model = ScriptedModel([Reply(calls=[Call("f", {}), Call("f", {})]), Reply(calls=[Call("f", {})])])
    ids = [made.call_id for _ in range(2) for made in (await model.generate(request())).calls]
    assert ids == ["call_1", "call_2", "call_3"]


async def test_an_empty_reply_is_nothing_but_its_finish() -> None:
    assert [part.type for part in await parts_of(ScriptedModel(""))] == ["finish"]


@pytest.mark.parametrize(
    ("chunks", "pieces"),
    [(None, ["abcde"]), (2, ["ab", "cd", "e"]), (9, ["abcde"]), (["abc", "", "de"], ["abc", "", "de"])],
)
async def test_chunks_cut_the_text(chunks: Any, pieces: list[str]) -> None:
    parts = await parts_of(ScriptedModel(Reply("abcde", chunks=chunks)))
    assert [part.text for part in parts[:-1]] == pieces


@pytest.mark.parametrize(
    "usage", [Usage(input_tokens=3, output_tokens=4), {"input_tokens": 3, "output_tokens": 4}, (3, 4)]
)
async def test_usage_may_be_given_in_full_by_name_or_as_a_pair(usage: Any) -> None:
    reply = await ScriptedModel(Reply("x", usage=usage)).generate(request())
    assert reply.usage == Usage(input_tokens=3, output_tokens=4)


async def test_the_stop_reason_is_passed_on() -> None:
    reply = await ScriptedModel(Reply("x", stop_reason="max_tokens")).generate(request())
    assert reply.finish.stop_reason == "max_tokens"


async def test_parts_are_sent_exactly_each_time() -> None:
    exact = [ModelPart("text_delta", text="x"), ModelPart("heartbeat")]
    model = ScriptedModel(Reply("ignored", calls=[Call("f", {})], parts=exact))
    assert await parts_of(model) == exact
    assert await parts_of(model) == exact


async def test_delays_pass_before_the_parts_they_belong_to() -> None:
    sleeps = Sleeps()
    model = ScriptedModel(Reply("abc", chunks=1, first_delay=5, delay=2), sleep=sleeps)
    seen = [list(sleeps.asked) async for _ in model.stream(request())]
    assert seen == [[5], [5, 2], [5, 2, 2], [5, 2, 2, 2]]


async def test_without_delays_nothing_sleeps_but_other_tasks_get_their_turn() -> None:
    sleeps = Sleeps()
    model = ScriptedModel(Reply("abcdef", chunks=1), sleep=sleeps)
    turns: list[str] = []

    async def read() -> None:
        turns.extend([part.type async for part in model.stream(request())])

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        while "finish" not in turns:
            await anyio.lowlevel.checkpoint()
            turns.append("other")
    assert turns.count("other") > 3
    assert sleeps.asked == []


@pytest.mark.parametrize("error", [ModelError("rate_limit", retry_after=3), ValueError("a defect")])
async def test_an_error_is_raised_at_once(error: Exception) -> None:
    model = ScriptedModel(Reply("x", error=error))
    with pytest.raises(type(error)) as caught:
        await anext(aiter(model.stream(request())))
    assert caught.value is error


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_an_error_comes_after_so_many_parts_of_any_type(after: int) -> None:
    model = ScriptedModel(Reply("x", reasoning="hm", error_after=after))
    parts = aiter(model.stream(request()))
    seen = [(await anext(parts)).type for _ in range(after)]
    assert seen == ["reasoning_delta", "text_delta", "finish"][:after]
    with pytest.raises(ModelError) as caught:
        await anext(parts)
    assert caught.value.retryable


async def test_a_failing_reply_is_used_up_by_its_attempt() -> None:
    model = ScriptedModel([Reply(error=ModelError("overloaded")), "better"])
    with pytest.raises(ModelError):
        await text_of(model)
    assert await text_of(model) == "better"


@pytest.mark.parametrize("after", [0, 2])
async def test_a_stall_is_silence_after_so_many_parts_until_it_is_cancelled(after: int) -> None:
    model = ScriptedModel(Reply("abc", chunks=1, stall_after=after))
    seen: list[str] = []
    ended = False

    async def read() -> None:
        nonlocal ended
        async for part in model.stream(request()):
            seen.append(part.text)  # noqa: PERF401 - a comprehension would lose what came before the silence
        ended = True

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert seen == ["a", "b"][:after]
        group.cancel_scope.cancel()
    assert not ended


async def test_a_summary_can_go_wrong_too() -> None:
    model = ScriptedModel([], summary=Reply("x", error_after=1, error=ModelError("context_overflow")))
    with pytest.raises(ModelError, match="context_overflow"):
        await model.generate(request("summary"))


async def test_a_whole_reply_is_the_join_of_the_stream() -> None:
    reply = await ScriptedModel(Reply("abc", chunks=1, reasoning="hm", calls=[Call("f", {})])).generate(request())
    assert reply.parts == (
        ReasoningPart(text="hm"),
        TextPart(text="abc"),
        ToolCallPart(call_id="call_1", name="f", arguments={}),
    )


def test_a_scripted_model_is_what_it_is_called() -> None:
    model = ScriptedModel("x", name="n", provider="p", context_limit=9)
    assert (model.name, model.provider, model.context_limit) == ("n", "p", 9)


async def test_a_script_of_one_reply_says_so() -> None:
    model = ScriptedModel(["one"])
    await text_of(model)
    with pytest.raises(ModelError, match="the script had 1 reply,"):
        await text_of(model)


async def test_a_function_that_gives_no_reply_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="one was 3"):
        await text_of(ScriptedModel(lambda _: 3))  # type: ignore[arg-type, return-value]


async def test_a_script_is_taken_as_it_stood_and_may_have_no_end() -> None:
    script = ["one", "two"]
    model = ScriptedModel(script)
    script.clear()
    assert [await text_of(model) for _ in range(2)] == ["one", "two"]
    endless = ScriptedModel(str(number) for number in itertools.count())
    assert [await text_of(endless) for _ in range(3)] == ["0", "1", "2"]


async def test_a_short_delay_is_kept() -> None:
    sleeps = Sleeps()
    await parts_of(ScriptedModel(Reply("ab", chunks=1, delay=0.5), sleep=sleeps))
    assert sleeps.asked == [0.5, 0.5]


async def test_a_signature_without_reasoning_is_sent() -> None:
    first, *_ = await parts_of(ScriptedModel(Reply("text", signature="s")))
    assert first == ModelPart("reasoning_delta", signature="s")


async def test_an_error_of_ones_own_comes_after_as_many_parts() -> None:
    error = ValueError("a defect")
    parts = aiter(ScriptedModel(Reply("ab", chunks=1, error=error, error_after=1)).stream(request()))
    assert (await anext(parts)).text == "a"
    with pytest.raises(ValueError, match="a defect") as caught:
        await anext(parts)
    assert caught.value is error


def test_parts_without_end_are_refused_before_they_are_read() -> None:
    with pytest.raises(InvalidArgument, match="parts"):
        Reply(parts=itertools.repeat(ModelPart("heartbeat")))  # type: ignore[arg-type]
