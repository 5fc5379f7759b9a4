"""The loop of a turn: steps until the model stops, and every other way in which a turn may end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.chats import lines_of, path_of
from support.engines import MakeModel, OpenEngine
from support.events import events_of
from turnwise import CompactionPolicy, Engine, ModelPart, Settings, fold, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


@tool
async def count(what: str = "things") -> str:
    """Count."""
    return f"2 {what}"


async def test_plain_answer_is_one_step(open_engine: Any, strict_model: Any) -> None:
    model = strict_model(["done"])
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hi")
        assert (result.text, result.stop_reason, result.chat.state) == ("done", "end_turn", "waiting")
        assert len(model.requests) == 1
        assert await path_of(engine, chat.id) == ["waiting", "pending", "streaming", "waiting"]
        assert lines_of(result.messages) == ["user: hi", "assistant: done"]


async def test_model_sees_the_tool_result(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply(calls=[Call("count", {})]), "all done"])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat(system="Count.")
        result = await engine.ask(chat.id, "how many?")
        assert result.text == "all done"
        assert [request.system for request in model.requests] == ["Count.", "Count."]
        seen = ["user: how many?", "assistant: count(call_1)", "tool: call_1=2 things"]
        assert lines_of(model.requests[1].messages) == seen
        assert [request.step for request in model.requests] == [1, 2]


async def test_transitions_that_follow_share_one_commit(tmp_path: Path, strict_model: Any) -> None:
    """A turn waits for the disk as seldom as it can: records of one commit bear one time."""
    model = strict_model([Reply(calls=[Call("count", {})]), "all done"])
    async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model=model, tools=[count]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "how many?")
        commits: dict[object, list[str]] = {}
        for record in await engine.audit(chat.id):
            commits.setdefault(record.at, []).append(record.trigger)
    together = list(commits.values())
    assert together[:3] == [
        ["create"],
        ["send_message", "claimed", "attempt_started"],
        ["step_finished", "call_started"],
    ]
    assert together[-2][-2:] == ["tools_finished", "attempt_started"]
    assert together[-1] == ["step_finished"]


@pytest.mark.parametrize("stop_reason", ["end_turn", "max_tokens", "stop"])
async def test_tool_calls_override_the_stop_reason(open_engine: Any, strict_model: Any, stop_reason: str) -> None:
    model = strict_model([Reply(calls=[Call("count", {})], stop_reason=stop_reason), "all done"])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "how many?")
        assert (len(model.requests), result.stop_reason) == (2, "end_turn")
        assert "tool: call_1=2 things" in lines_of(result.messages)


@pytest.mark.parametrize("stop_reason", ["max_tokens", "length", "content_filter", "end_turn"])
@pytest.mark.parametrize("cut", ['{"cents": 7', "", "7"])
async def test_call_with_cut_off_arguments_does_not_run(
    open_engine: Any, strict_model: Any, stop_reason: str, cut: str
) -> None:
    """The 7 may be the beginning of 700. Where the model was done, its JSON is closed: it only forgot a brace."""
    paid: list[int] = []

    @tool
    async def pay(cents: int = 0) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    calls = [Call("count", {}), Call("pay", '{"cents": 5'), Call("pay", cut)]
    model = strict_model([Reply(calls=calls, stop_reason=stop_reason), "all done"])
    async with open_engine(model, tools=[count, pay]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "pay")
        assert (len(model.requests), result.stop_reason) == (2, "end_turn")
        assert fold(await events_of(engine, chat.id)).messages == await engine.messages(chat.id)
    outputs = [message.result.output for message in result.messages if message.result is not None]
    assert outputs[:2] == ["2 things", "paid"]
    if stop_reason != "end_turn":
        assert outputs[2] == "Not run: your reply ended before the arguments of this call were complete."
    assert paid == ([5] if stop_reason != "end_turn" or cut == "7" else [5, 7] if cut else [5, 0])


def begun(call_id: str, name: str) -> ModelPart:
    return ModelPart("tool_call_start", id=call_id, name=name)


def more(call_id: str, arguments: str) -> ModelPart:
    return ModelPart("tool_call_delta", id=call_id, arguments=arguments)


def ended(call_id: str, name: str, arguments: str | None) -> ModelPart:
    return ModelPart("tool_call", id=call_id, name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("parts", "runs", "cut"),
    [
        pytest.param(
            [begun("a", "pay"), begun("b", "look"), more("a", '{"n": 7'), more("b", "{}"), ended("b", "look", "{}")],
            [("look", 0)],
            ["a"],
            id="a call that came beside it is whole",
        ),
        pytest.param(
            [begun("a", "pay"), more("a", '{"n"'), begun("b", "look"), more("a", ": 7"), ended("a", "pay", '{"n": 7')],
            [],
            ["a", "b"],
            id="both are cut and the model ends one of them",
        ),
        pytest.param(
            [begun("a", "look"), ended("a", "look", "{}"), begun("b", "pay")],
            [("look", 0)],
            ["b"],
            id="nothing came of it, and nothing was all of the one before",
        ),
        pytest.param(
            [begun("a", "look"), ended("a", "look", None), begun("b", "pay"), more("b", '{"n": 7}')],
            [("look", 0), ("pay", 7)],
            [],
            id="the last is whole, and the first has no arguments",
        ),
        pytest.param(
            [begun("a", "pay"), more("a", '{"n": 5'), ended("a", "pay", '{"n": 5'), begun("b", "pay"), more("b", "{")],
            [("pay", 5)],
            ["b"],
            id="the one before was ended by the model, badly",
        ),
        pytest.param(
            [begun("a", "pay"), begun("b", "look"), ended("b", "look", "{}"), ModelPart("text_delta", text="well")],
            [("look", 0)],
            ["a"],
            id="nobody ended the first",
        ),
    ],
)
async def test_cut_off_parallel_calls_do_not_run(
    open_engine: OpenEngine, strict_model: MakeModel, parts: list[ModelPart], runs: list[Any], cut: list[str]
) -> None:
    ran: list[tuple[str, int]] = []

    @tool
    async def pay(n: int = 0) -> None:
        """Pay."""
        ran.append(("pay", n))

    @tool
    async def look(n: int = 0) -> None:
        """Look."""
        ran.append(("look", n))

    model = strict_model([Reply(parts=[*parts, ModelPart("finish", stop_reason="max_tokens")]), "all done"])
    async with open_engine(model, tools=[pay, look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        results = [message.result for message in await engine.messages(chat.id) if message.result is not None]
        assert fold(await events_of(engine, chat.id)).messages == await engine.messages(chat.id)
    assert ran == runs
    assert [result.call_id for result in results if str(result.output).startswith("Not run: your reply ended")] == cut


async def test_max_steps_ends_a_turn(open_engine: Any, strict_model: Any) -> None:
    model = strict_model(Reply(calls=[Call("count", {})]))
    async with open_engine(model, tools=[count], settings=Settings(max_steps=3)) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (len(model.requests), result.stop_reason) == (3, "max_steps")
        assert [line.split("=")[0] for line in lines_of(result.messages) if line.startswith("tool")] == [
            "tool: call_1",
            "tool: call_2",
            "tool: call_3",
        ]


async def test_new_turn_has_fresh_max_steps(open_engine: Any, strict_model: Any) -> None:
    model = strict_model(["one", "two"])
    async with open_engine(model, settings=Settings(max_steps=1)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "first")
        second = await engine.ask(chat.id, "second")
        assert second.stop_reason == "end_turn"
        assert lines_of(model.requests[1].messages) == ["user: first", "assistant: one", "user: second"]
        whole = ["user: first", "assistant: one", "user: second", "assistant: two"]
        assert lines_of(await engine.messages(chat.id)) == whole
        assert lines_of(second.messages) == whole[2:]


async def test_call_is_stored_before_its_tool_starts(open_engine: Any, strict_model: Any) -> None:
    """A crash inside the tool must find out that it may have happened."""
    seen: list[Any] = []

    @tool
    async def look() -> str:
        """Look at the chat from inside the call."""
        chat = await engine.get_chat(chat_id)
        seen.append((chat.state, [call.status for call in chat.open_calls], lines_of(await engine.messages(chat_id))))
        return "seen"

    async with open_engine(strict_model([Reply(calls=[Call("look", {})]), "done"]), tools=[look]) as engine:
        chat_id = (await engine.create_chat()).id
        await engine.ask(chat_id, "go")
    assert seen == [("executing_tools", ["started"], ["user: go", "assistant: look(call_1)"])]


async def test_stop_after_tool_ends_the_turn(open_engine: Any, strict_model: Any) -> None:
    @tool(stop_after=True)
    async def hand_over() -> str:
        """Hand over."""
        return "handed over"

    model = strict_model([Reply(calls=[Call("hand_over", {}), Call("count", {})])])
    async with open_engine(model, tools=[hand_over, count]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (len(model.requests), result.stop_reason) == (1, "stop_after_tool")
        assert lines_of(result.messages)[2:] == ["tool: call_1=handed over", "tool: call_2=2 things"]


async def test_failed_stop_after_tool_continues_the_turn(open_engine: Any, strict_model: Any) -> None:
    @tool(stop_after=True)
    async def hand_over() -> str:
        """Hand over."""
        raise ValueError("nobody there")

    model = strict_model([Reply(calls=[Call("hand_over", {})]), "I go on"])
    async with open_engine(model, tools=[hand_over]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (result.text, result.stop_reason) == ("I go on", "end_turn")


async def test_empty_reply_is_not_stored(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([Reply(""), "hello"])) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (result.text, result.stop_reason, lines_of(result.messages)) == ("", "end_turn", ["user: go"])
        assert (await engine.ask(chat.id, "still there?")).text == "hello"


@pytest.mark.parametrize("nothing", [" ", "\n\n"])
async def test_blank_reply_is_never_sent_back(open_engine: Any, strict_model: Any, nothing: str) -> None:
    """Providers refuse a text that says nothing: the chat would be stuck for good."""
    async with open_engine(
        strict_model([Reply(nothing), Reply(nothing, calls=[Call("count", {})]), "hello"]), tools=[count]
    ) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "go")).stop_reason == "end_turn"
        assert (await engine.ask(chat.id, "and now?")).text == "hello"


async def test_only_active_tools_are_offered(open_engine: Any, strict_model: Any) -> None:
    @tool
    async def other() -> str:
        """Do otherwise."""
        return ""

    model = strict_model(["done"])
    async with open_engine(model, tools=[count, other], settings=Settings(active_tools=["other"])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        assert [spec.name for spec in model.requests[0].tools] == ["other"]


async def test_adapter_changes_do_not_leak_back(open_engine: Any, strict_model: Any) -> None:
    def vandalise(request: Any) -> str:
        for message in request.messages:
            for call in message.calls:
                call.arguments["what"] = "lies"
        request.messages.clear()
        request.tools[0].schema.clear()
        request.parameters["provider_options"]["seed"] = 0
        return "done"

    model = strict_model([Reply(calls=[Call("count", {"what": "sheep"})]), vandalise, "again"])
    settings = Settings(parameters={"provider_options": {"seed": 7}})
    async with open_engine(model, tools=[count], settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        await engine.ask(chat.id, "more")
        assert [call.arguments for message in model.requests[-1].messages for call in message.calls] == [
            {"what": "sheep"}
        ]
        assert model.requests[-1].tools[0].schema["type"] == "object"
        assert model.requests[-1].parameters == {"provider_options": {"seed": 7}}
        history = await engine.messages(chat.id)
        assert history[1].calls[0].arguments == {"what": "sheep"}
        assert len(history) == 6


async def test_events_of_a_turn_come_in_order(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply("running", calls=[Call("count", {})]), Reply("all done", chunks=3)])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        events = await events_of(engine, chat.id)
        transcript = fold(events)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert transcript.messages == await engine.messages(chat.id)
        assert (transcript.state, transcript.stop_reason, transcript.live) == ("waiting", "end_turn", {})
        assert [getattr(event, "state", event.kind) for event in events if event.kind != "part"] == [
            *("waiting", "message", "pending", "streaming"),
            *("message", "executing_tools", "message", "tool_result", "streaming"),
            *("message", "waiting", "turn_finished"),
        ]


async def test_reasoning_signature_returns_to_provider(open_engine: Any, strict_model: Any) -> None:
    signed = [
        ModelPart("reasoning_delta", text="", signature="c2ln+/=="),
        ModelPart("text_delta", text="hello"),
        ModelPart("finish", stop_reason="end_turn"),
    ]
    model = strict_model([Reply(parts=signed), Reply("two", reasoning="hm\n", signature="\u2028x"), "three"])
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        for text in ("a", "b", "c"):
            await engine.ask(chat.id, text)
        back = [part for message in model.requests[2].messages for part in message.parts if part.type == "reasoning"]
        assert [(part.text, part.signature) for part in back] == [("", "c2ln+/=="), ("hm\n", "\u2028x")]


async def test_half_characters_are_replaced(open_engine: Any, strict_model: Any) -> None:
    """Cut in the middle of an emoji, text cannot be stored; the chat must live on."""
    parts = [
        ModelPart("reasoning_delta", text="hm \ud83d"),
        ModelPart("text_delta", text="look \ud83d"),
        ModelPart("tool_call", id="call_1", name="count", arguments='{"what": "\\ud83d"}'),
        ModelPart("finish", stop_reason="tool_use"),
    ]
    model = strict_model([Reply(parts=parts), "done"])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        reasoning, text, call = result.messages[1].parts
        assert (reasoning.text, text.text, call.arguments) == ("hm \ufffd", "look \ufffd", {"what": "\ufffd"})
        assert result.messages[2].result.output == "2 \ufffd"
        assert result.chat.state == "waiting"


async def test_no_max_steps_means_no_limit(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([*60 * [Reply(calls=[Call("count", {})])], "done"])
    settings = Settings(max_steps=None, compaction=CompactionPolicy(threshold_percent=100))
    async with open_engine(model, tools=[count], settings=settings) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "go")).text == "done"
        assert len(model.requests) == 61


async def test_unanswered_provider_call_is_not_sent(open_engine: Any) -> None:
    searched = [
        ModelPart("text_delta", text="I search."),
        ModelPart("tool_call", id="w", name="web", arguments={}, executor="provider"),
        ModelPart("finish", stop_reason="end_turn"),
    ]
    model = ScriptedModel([Reply(parts=searched), "done"])
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        await engine.ask(chat.id, "on")
    assert [part.type for part in model.requests[1].messages[1].parts] == ["text"]
