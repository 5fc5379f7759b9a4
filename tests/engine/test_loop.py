"""The loop of a turn: steps until the model stops, and every other way in which a turn may end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.chats import lines_of, path_of
from support.engines import MakeModel, OpenEngine
from support.events import events_of
from support.latches import Latch
from turnwise import CompactionPolicy, Engine, Message, ModelPart, Settings, SettingsError, TextPart, Usage, fold, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel


@tool
async def count(what: str = "things") -> str:
    """Count."""
    return f"2 {what}"


async def test_a_plain_answer_is_one_step_and_rests_in_waiting(open_engine: Any, strict_model: Any) -> None:
    model = strict_model(["done"])
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hi")
        assert (result.text, result.stop_reason, result.chat.state) == ("done", "end_turn", "waiting")
        assert len(model.requests) == 1
        assert await path_of(engine, chat.id) == ["waiting", "pending", "streaming", "waiting"]
        assert lines_of(result.messages) == ["user: hi", "assistant: done"]


async def test_the_model_sees_the_result_of_its_call(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply(calls=[Call("count", {})]), "all done"])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat(system="Count.")
        result = await engine.ask(chat.id, "how many?")
        assert result.text == "all done"
        assert [request.system for request in model.requests] == ["Count.", "Count."]
        seen = ["user: how many?", "assistant: count(call_1)", "tool: call_1=2 things"]
        assert lines_of(model.requests[1].messages) == seen
        assert [request.step for request in model.requests] == [1, 2]


async def test_what_is_known_to_follow_is_committed_with_what_it_follows(tmp_path: Path, strict_model: Any) -> None:
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
async def test_calls_beat_the_stop_reason(open_engine: Any, strict_model: Any, stop_reason: str) -> None:
    model = strict_model([Reply(calls=[Call("count", {})], stop_reason=stop_reason), "all done"])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "how many?")
        assert (len(model.requests), result.stop_reason) == (2, "end_turn")
        assert "tool: call_1=2 things" in lines_of(result.messages)


@pytest.mark.parametrize("stop_reason", ["max_tokens", "length", "content_filter", "end_turn"])
@pytest.mark.parametrize("cut", ['{"cents": 7', "", "7"])
async def test_a_call_that_was_cut_off_in_the_middle_of_its_arguments_does_not_run(
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
async def test_of_calls_that_come_beside_each_other_those_that_were_cut_off_do_not_run(
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


async def test_the_ceiling_ends_a_turn_of_endless_calls_with_everything_stored(
    open_engine: Any, strict_model: Any
) -> None:
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


async def test_a_compaction_does_not_reset_the_ceiling(open_engine: Any, strict_model: Any) -> None:
    model = strict_model(Reply(calls=[Call("count", {})], usage=(90, 1)), context_limit=100)
    async with open_engine(model, tools=[count], settings=Settings(max_steps=2)) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert [request.purpose for request in model.requests].count("step") == 2
        assert [request.purpose for request in model.requests].count("summary") >= 1
        assert result.stop_reason == "max_steps"


async def test_a_new_turn_has_a_fresh_ceiling_and_the_whole_history(open_engine: Any, strict_model: Any) -> None:
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


async def test_text_before_a_call_is_in_the_message_of_the_call(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply("running ", calls=[Call("count", {})]), "done"])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert lines_of(result.messages)[1] == "assistant: running  count(call_1)"


async def test_a_call_and_its_message_are_stored_before_the_tool_starts(open_engine: Any, strict_model: Any) -> None:
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


async def test_a_stop_after_tool_that_succeeds_ends_the_turn(open_engine: Any, strict_model: Any) -> None:
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


async def test_a_stop_after_tool_that_fails_lets_the_turn_go_on(open_engine: Any, strict_model: Any) -> None:
    @tool(stop_after=True)
    async def hand_over() -> str:
        """Hand over."""
        raise ValueError("nobody there")

    model = strict_model([Reply(calls=[Call("hand_over", {})]), "I go on"])
    async with open_engine(model, tools=[hand_over]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (result.text, result.stop_reason) == ("I go on", "end_turn")


async def test_a_stop_after_turn_can_be_followed_by_the_next_message(open_engine: Any, strict_model: Any) -> None:
    @tool(stop_after=True)
    async def hand_over() -> str:
        """Hand over."""
        return "handed over"

    model = strict_model([Reply(calls=[Call("hand_over", {})]), "hello again"])
    async with open_engine(model, tools=[hand_over]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        assert (await engine.ask(chat.id, "and?")).text == "hello again"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (None, "end_turn"),
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("max_tokens", "max_tokens"),
        ("content_filter", "content_filter"),
    ],
)
async def test_the_providers_own_word_is_kept_beside_the_stop_reason(
    open_engine: Any, strict_model: Any, word: str | None, reason: str
) -> None:
    async with open_engine(strict_model([Reply("well", stop_reason=word)])) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "go")).stop_reason == reason
        (finished,) = await events_of(engine, chat.id, "turn_finished")
        assert (finished.stop_reason, finished.provider_reason) == (reason, word or "end_turn")


async def test_a_reply_without_content_is_not_stored_and_ends_the_turn(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([Reply(""), "hello"])) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "go")
        assert (result.text, result.stop_reason, lines_of(result.messages)) == ("", "end_turn", ["user: go"])
        assert (await engine.ask(chat.id, "still there?")).text == "hello"


@pytest.mark.parametrize("nothing", [" ", "\n\n"])
async def test_a_reply_of_white_space_never_reaches_the_provider_again(
    open_engine: Any, strict_model: Any, nothing: str
) -> None:
    """Providers refuse a text that says nothing: the chat would be stuck for good."""
    async with open_engine(
        strict_model([Reply(nothing), Reply(nothing, calls=[Call("count", {})]), "hello"]), tools=[count]
    ) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "go")).stop_reason == "end_turn"
        assert (await engine.ask(chat.id, "and now?")).text == "hello"


async def test_tools_and_parameters_are_the_same_in_every_step_of_a_turn(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply(calls=[Call("count", {})]), "done"])
    parameters = {"temperature": 0.5, "tool_choice": "auto", "provider_options": {"top_k": 3}}
    async with open_engine(model, tools=[count], settings=Settings(parameters=parameters)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        first, second = model.requests
        assert first.tools == second.tools
        assert [spec.name for spec in first.tools] == ["count"]
        assert first.parameters == second.parameters == parameters


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


async def test_prepared_messages_and_reminders_are_for_one_request_only(open_engine: Any, strict_model: Any) -> None:
    def shouting(messages: list[Message]) -> list[Message]:
        first = messages[0]
        return [replace(first, parts=(TextPart(text=first.text.upper()),)), *messages[1:]]

    model = strict_model([Reply(calls=[Call("count", {})]), "done"])
    async with open_engine(
        model, tools=[count], prepare_messages=shouting, reminders=[lambda state: [f"step {state.step}", "be brief"]]
    ) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        assert lines_of(model.requests[0].messages) == [
            "user: GO",
            "system: <reminder>step 1</reminder>",
            "system: <reminder>be brief</reminder>",
        ]
        assert lines_of(model.requests[1].messages)[-2:] == [
            "system: <reminder>step 2</reminder>",
            "system: <reminder>be brief</reminder>",
        ]
        assert "step 1" not in str(model.requests[1].messages)
        stored = ["user: go", "assistant: count(call_1)", "tool: call_1=2 things", "assistant: done"]
        assert lines_of(await engine.messages(chat.id)) == stored


async def test_what_an_adapter_does_to_a_request_does_not_leak_back(open_engine: Any, strict_model: Any) -> None:
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


async def test_usage_is_the_sum_of_the_steps(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply(calls=[Call("count", {})], usage=(10, 1)), Reply("done", usage=(20, 2)), "more"])
    async with open_engine(model, tools=[count]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "go")).usage == Usage(input_tokens=30, output_tokens=3)
        unreported = (await engine.ask(chat.id, "more")).usage
        assert (unreported.input_tokens, unreported.output_tokens) == (None, None)


async def test_events_fold_to_the_transcript_and_precede_the_status_they_imply(
    open_engine: Any, strict_model: Any
) -> None:
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


async def test_a_signature_without_text_is_silent_and_goes_back(open_engine: Any, strict_model: Any) -> None:
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


async def test_half_characters_of_a_model_are_replaced_and_stop_nothing(open_engine: Any, strict_model: Any) -> None:
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


async def test_a_turn_goes_on_when_nobody_listens(open_engine: Any, strict_model: Any) -> None:
    latch = Latch()
    model = strict_model([Reply("hello", first_delay=1)], sleep=latch.pass_through)
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        async for event in engine.events(chat.id):
            if event.kind == "status" and event.state == "streaming":
                break
        latch.open()
        assert (await engine.wait(chat.id)).stop_reason == "end_turn"


@pytest.mark.parametrize("ceiling", [0, -1, True, 1.5])
def test_a_ceiling_that_makes_no_sense_is_refused_before_anything_is_stored(ceiling: Any) -> None:
    with pytest.raises(SettingsError, match=r"max_steps: must be a whole number"):
        Settings(max_steps=ceiling)


async def test_no_ceiling_means_none(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([*60 * [Reply(calls=[Call("count", {})])], "done"])
    settings = Settings(max_steps=None, compaction=CompactionPolicy(threshold_percent=100))
    async with open_engine(model, tools=[count], settings=settings) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "go")).text == "done"
        assert len(model.requests) == 61


async def test_every_model_gets_each_call_with_its_one_result_whatever_a_hook_made_of_the_history(
    open_engine: Any,
) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    def forget_results(messages: list[Message]) -> list[Message]:
        return [message for message in messages if message.role != "tool"]

    model = ScriptedModel([Reply(calls=[Call("look", {}, id="a"), Call("look", {}, id="b")]), "done"])
    async with open_engine(model, tools=[look], prepare_messages=forget_results) as engine:
        await engine.ask((await engine.create_chat()).id, "go")
    sent = model.requests[1].messages
    assert [message.role for message in sent] == ["user", "assistant", "tool", "tool"]
    assert [message.result.call_id for message in sent[2:] if message.result] == ["a", "b"]


async def test_a_providers_call_without_a_result_is_not_sent_on_to_any_model(open_engine: Any) -> None:
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


async def test_what_is_kept_of_a_reply_that_was_cut_off_has_no_providers_call_without_its_result(
    open_engine: Any,
) -> None:
    calls = [ModelPart("tool_call", id=name, name="web", arguments={}, executor="provider") for name in ("w", "x")]
    said = ModelPart("text_delta", text="I search.")
    model = ScriptedModel(
        [Reply(parts=[said, *calls, ModelPart("provider_result", call_id="w", output=1)], stall_after=4)]
    )
    async with open_engine(model, settings=Settings(coalesce=0)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        async for event in engine.events(chat.id):
            if event.kind == "part" and event.part.type == "tool_result":
                break
        await engine.interrupt(chat.id)
        await engine.wait(chat.id, timeout=60)
        kept = (await engine.messages(chat.id))[-1]
    assert (kept.partial, [getattr(part, "call_id", part.type) for part in kept.parts]) == (True, ["text", "w", "w"])
