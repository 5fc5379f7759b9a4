import dataclasses
import itertools
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from turnwise import CompactionPolicy, Engine, InvalidArgument, Settings
from turnwise.providers.protocol import Model, ModelPart, ModelRequest, Purpose
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.model_errors import ModelError
from turnwise.states.names import StopReason
from turnwise.states.usage import Usage
from turnwise.testing import ManualClock

_: Model = ScriptedModel([])


class Sleeps:
    """Records sleeps, and returns at once."""

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


async def test_exhausted_script_is_a_model_error() -> None:
    model = ScriptedModel(["one", "two"])
    await text_of(model)
    await text_of(model)
    with pytest.raises(ModelError, match="the script had 2 replies") as caught:
        await text_of(model)
    assert (caught.value.kind, caught.value.retryable) == ("bad_request", False)


@pytest.mark.parametrize("single", ["again", Reply("again"), lambda _: "again"])
async def test_single_reply_answers_every_step(single: Any) -> None:
    model = ScriptedModel(single)
    assert [await text_of(model) for _ in range(3)] == ["again"] * 3


async def test_summaries_and_titles_consume_no_reply() -> None:
    model = ScriptedModel(["one"], summary=Reply("so far", usage=(5, 2)))
    assert (await model.generate(request("summary"))).usage == Usage(input_tokens=5, output_tokens=2)
    assert await text_of(model, "title") == "scripted"
    assert await text_of(model) == "one"
    assert await text_of(ScriptedModel([]), "summary") == "summary"
    assert await text_of(ScriptedModel([], summary=lambda asked: asked.purpose), "summary") == "summary"


async def test_requests_are_recorded_as_they_came() -> None:
    model = ScriptedModel("ok")
    asked = request(parameters={"temperature": 0})
    await parts_of(model, asked)
    await model.generate(request("summary"))
    asked.messages.append("changed")  # type: ignore[arg-type]
    asked.parameters["temperature"] = 1  # type: ignore[index]
    assert [known.purpose for known in model.requests] == ["step", "summary"]
    assert model.requests[0] == dataclasses.replace(asked, messages=[], parameters={"temperature": 0})


async def test_reply_streams_reasoning_text_calls_finish() -> None:
    reply = Reply("text", reasoning="hm", signature="s", calls=[Call("f", {"a": 1}, id="x"), Call("g", '{"b"')])
    parts = await parts_of(ScriptedModel(reply, context_limit=900))
    assert parts == [
        ModelPart("reasoning_delta", text="hm", signature="s"),
        ModelPart("text_delta", text="text"),
        ModelPart("tool_call", id="x", name="f", arguments={"a": 1}),
        ModelPart("tool_call", id="call_1", name="g", arguments='{"b"'),
        ModelPart("finish", stop_reason=StopReason.end_turn, context_limit=900),
    ]


@pytest.mark.parametrize(
    ("chunks", "pieces"),
    [(None, ["abcde"]), (2, ["ab", "cd", "e"]), (9, ["abcde"]), (["abc", "", "de"], ["abc", "", "de"])],
)
async def test_chunks_cut_the_text(chunks: Any, pieces: list[str]) -> None:
    parts = await parts_of(ScriptedModel(Reply("abcde", chunks=chunks)))
    assert [part.text for part in parts[:-1]] == pieces


async def test_delays_precede_their_parts() -> None:
    sleeps = Sleeps()
    model = ScriptedModel(Reply("abc", chunks=1, first_delay=5, delay=2), sleep=sleeps)
    seen = [list(sleeps.asked) async for _ in model.stream(request())]
    assert seen == [[5], [5, 2], [5, 2, 2], [5, 2, 2, 2]]
    sleeps.asked.clear()
    await ScriptedModel("no delay", sleep=sleeps).generate(request())
    assert sleeps.asked == []


async def test_line_of_a_script_must_be_a_reply() -> None:
    model = ScriptedModel(lambda _: 7)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgument, match="replies: must be replies or their text; one was 7"):
        await text_of(model)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_error_after_counts_parts_of_any_type(after: int) -> None:
    model = ScriptedModel(Reply("x", reasoning="hm", error_after=after))
    parts = aiter(model.stream(request()))
    seen = [(await anext(parts)).type for _ in range(after)]
    assert seen == ["reasoning_delta", "text_delta", "finish"][:after]
    with pytest.raises(ModelError) as caught:
        await anext(parts)
    assert caught.value.retryable


@pytest.mark.parametrize("after", [0, 2])
async def test_stall_after_counts_parts_and_can_be_cancelled(after: int) -> None:
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


async def test_script_is_copied_and_may_be_endless() -> None:
    script = ["one", "two"]
    model = ScriptedModel(script)
    script.clear()
    assert [await text_of(model) for _ in range(2)] == ["one", "two"]
    endless = ScriptedModel(str(number) for number in itertools.count())
    assert [await text_of(endless) for _ in range(3)] == ["0", "1", "2"]


# Sleep by the clock of the engine


async def test_scripted_delays_use_the_clock_of_the_engine() -> None:
    """So no test waits for a slow model, and engines with different clocks may share a model."""
    slow = Reply("at last", first_delay=300)
    model = ScriptedModel(slow, summary=slow)
    one_clock, other_clock = ManualClock(), ManualClock()
    settings = Settings.for_reasoning(compaction=CompactionPolicy(timeout=600), shutdown_grace=0)
    async with (
        Engine("sqlite://", model=model, clock=one_clock, settings=settings) as one,
        Engine("sqlite://", model=model, clock=other_clock, settings=settings) as other,
    ):
        mine, others = await one.create_chat(), await other.create_chat()
        await one.send_message(mine.id, "hi")
        await other.send_message(others.id, "hi")
        await _asked(model, 2)
        await one_clock.advance(300)
        assert (await one.wait(mine.id)).state == "waiting"
        await one.request_compaction(mine.id)
        await _asked(model, 3)
        await one_clock.advance(299)
        assert (await one.get_chat(mine.id)).state == "compacting"
        await one_clock.advance(1)
        assert (await one.wait(mine.id)).state == "waiting"
        assert (await other.get_chat(others.id)).state == "streaming"
        await other_clock.advance(300)
        assert (await other.wait(others.id)).state == "waiting"


async def _asked(model: ScriptedModel, times: int) -> None:
    with anyio.fail_after(120):
        while len(model.requests) < times:
            await anyio.lowlevel.checkpoint()
