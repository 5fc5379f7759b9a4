"""The loop of a turn: steps until the model stops, and every other end of a turn."""

import dataclasses
from typing import Any

import pytest
from tests.engine.chats import lines_of

from support.engines import OpenChat, OpenEngine
from support.events import assert_told_right, events_of
from turnwise import ClientTool, CompactionPolicy, ModelError, ModelPart, Settings, Usage, fold, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import PartEvent
from turnwise.states.names import StopReason


@tool
async def count(what: str = "things") -> str:
    """Count."""
    return f"2 {what}"


FATAL = [
    '{"cents": 7',
    '{"cents": 1e',
    '{"cents": 7, "to": "ann',
    '{"cents": 7, "to": nu',
    '{"cents"',
    '{"cents": 7,',
    '{"cents": }',
    '{"cents": 7}{"cents": 8}',
    "7",
    "{'to': 'ann",
    '{"cents": [',
]
"""Arguments of calls that never run, for every end of their reply."""
MENDED = {'{"cents": 7, "to": "ann"': 7, "{'cents': 7}": 7, '{"cents": 7 "to": null}': 7, "": 0}
WHOLE = {'{"cents": 7}': 7}


@pytest.mark.parametrize(
    ("word", "running"),
    [("end_turn", MENDED | WHOLE), ("length", WHOLE), ("abort", WHOLE), (None, WHOLE), ("refusal", {})],
)
async def test_only_complete_calls_run(
    open_engine: OpenEngine, strict_model: Any, word: str | None, running: dict[str, int]
) -> None:
    """The 7 may be the start of 700. The other calls need no approval and do not run, and the model sees that."""
    paid: list[int] = []

    @tool
    async def pay(cents: int = 0, to: str | None = None) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    schema = {"type": "object", "properties": {"cents": {"type": "integer"}}}
    point = ClientTool("point", "Point.", schema)
    ask_first = dataclasses.replace(pay, name="pay_if_allowed", policy="ask")
    texts = [*FATAL, *MENDED, *WHOLE]
    names = {text: ["pay"] if text in running else ["pay", "pay_if_allowed", "point"] for text in texts}
    script: list[Any] = []
    for text in texts:
        calls = [end(f"c{place}", name, text) for place, name in enumerate(names[text])]
        script += [Reply(parts=[*calls, ModelPart("finish", stop_reason=word)]), "all done"]
    async with open_engine(strict_model(script), tools=[pay, ask_first]) as engine:
        for text in texts:
            chat = await engine.create_chat(client_tools=[point])
            result = await engine.ask(chat.id, "pay")
            assert (result.text, result.chat.state, result.stop_reason) == ("all done", "waiting", "end_turn"), text
            outputs = [str(message.result.output) for message in result.messages if message.result is not None]
            assert text in running or [output[:8] for output in outputs] == ["Not run:"] * 3, outputs
    assert paid == list(running.values())


def end(call_id: str, name: str, arguments: str | None) -> ModelPart:
    return ModelPart("tool_call", id=call_id, name=name, arguments=arguments)


async def test_max_steps_ends_a_turn(open_chat: OpenChat) -> None:
    script = Reply(calls=[Call("count", {})])
    async with open_chat(script, tools=[count], settings=Settings(max_steps=3)) as (engine, chat, model):
        result = await engine.ask(chat.id, "go")
        assert (len(model.requests), result.stop_reason) == (3, "max_steps")
        results = [line for line in lines_of(result.messages) if line.startswith("tool")]
        assert results == [f"tool: call_{number}=2 things" for number in (1, 2, 3)]


async def test_stop_after_tool_ends_the_turn(open_chat: OpenChat) -> None:
    @tool(stop_after=True)
    async def hand_over() -> str:
        """Hand over."""
        return "handed over"

    script = [Reply(calls=[Call("hand_over", {}), Call("count", {})])]
    async with open_chat(script, tools=[hand_over, count]) as (engine, chat, model):
        result = await engine.ask(chat.id, "go")
        assert (len(model.requests), result.stop_reason) == (1, "stop_after_tool")
        assert lines_of(result.messages)[2:] == ["tool: call_1=handed over", "tool: call_2=2 things"]


async def test_failed_stop_after_tool_continues_the_turn(open_chat: OpenChat) -> None:
    @tool(stop_after=True)
    async def hand_over() -> str:
        """Hand over."""
        raise ValueError("no operator")

    async with open_chat([Reply(calls=[Call("hand_over", {})]), "I go on"], tools=[hand_over]) as (engine, chat, _):
        result = await engine.ask(chat.id, "go")
        assert (result.text, result.stop_reason) == ("I go on", "end_turn")


async def test_empty_reply_is_not_stored(open_chat: OpenChat) -> None:
    async with open_chat([Reply(""), "hello"]) as (engine, chat, _):
        result = await engine.ask(chat.id, "go")
        assert (result.text, result.stop_reason, lines_of(result.messages)) == ("", "end_turn", ["user: go"])
        assert (await engine.ask(chat.id, "still there?")).text == "hello"


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


async def test_half_characters_are_replaced(open_chat: OpenChat) -> None:
    """Half an emoji cannot be stored, and must not end the chat."""
    parts = [
        ModelPart("reasoning_delta", text="hm \ud83d"),
        ModelPart("text_delta", text="look \ud83d"),
        ModelPart("tool_call", id="call_1", name="count", arguments='{"what": "\\ud83d"}'),
        ModelPart("finish", stop_reason="tool_use"),
    ]
    async with open_chat([Reply(parts=parts), "done"], tools=[count]) as (engine, chat, _):
        result = await engine.ask(chat.id, "go")
        reasoning, text, call = result.messages[1].parts
        assert (reasoning.text, text.text, call.arguments) == ("hm \ufffd", "look \ufffd", {"what": "\ufffd"})
        assert result.messages[2].result.output == "2 \ufffd"
        assert result.chat.state == "waiting"


QUICK = Settings(coalesce=0)
LATER = Settings(coalesce=3600)  # shows no part before a reply has ended


def finished(**fields: Any) -> Reply:
    return Reply(parts=[ModelPart("text_delta", text="well"), ModelPart("finish", **fields)])


@pytest.mark.parametrize(
    ("word", "reason", "own"),
    [
        ("length", StopReason.max_tokens, {"reason": "OWN"}),
        ("content_filter", StopReason.content_filter, {"reason": "OWN"}),
        ("refusal", StopReason.content_filter, None),
        ("stop", StopReason.end_turn, {"response_id": "r"}),
        ("anything else", StopReason.unknown, {"reason": "OWN"}),
        ("max_steps", StopReason.unknown, None),
        (None, StopReason.unknown, None),
    ],
)
async def test_stop_reason_follows_provider_reason(
    open_chat: OpenChat, word: str | None, reason: StopReason, own: dict[str, Any] | None
) -> None:
    async with open_chat([finished(stop_reason=word, metadata=own)], settings=QUICK) as (engine, chat, _):
        answer = (await engine.ask(chat.id, "hi")).messages[-1]
        (end,) = await events_of(engine, chat.id, "turn_finished")
    assert (end.stop_reason, end.provider_reason) == (reason, (own or {}).get("reason", word))
    assert answer.finish_reason == (own or {}).get("reason", word)


@pytest.mark.parametrize(
    ("finish", "system", "known"),
    [
        ({"usage": Usage(input_tokens=12, output_tokens=1), "context_limit": 1000}, None, (12, 1000, False)),
        ({"usage": Usage(input_tokens=0), "context_limit": 1000}, None, (0, 1000, False)),
        ({"usage": Usage(output_tokens=5), "context_limit": 1000}, None, (30, 1000, True)),
        ({"usage": Usage(input_tokens=90), "metadata": {"context_tokens": 40}}, None, (40, 2000, False)),
        ({"usage": Usage(input_tokens=90), "metadata": {"context_tokens": "4"}}, None, (30, 2000, True)),
        ({"context_limit": 1000}, "s" * 40, (40, 1000, True)),
        ({"context_limit": 0}, None, (30, 0, True)),
        ({"context_limit": 1500.0}, None, (30, 1500, True)),
        ({"context_limit": True}, None, (30, 2000, True)),
    ],
)
async def test_context_tokens_are_reported_or_estimated(
    open_chat: OpenChat, finish: dict[str, Any], system: str | None, known: tuple[int, int, bool]
) -> None:
    policy = CompactionPolicy(model=ScriptedModel([], context_limit=2000), threshold_percent=100)
    script = [finished(**finish)]
    async with open_chat(script, system=system, settings=Settings(coalesce=0, compaction=policy)) as (engine, chat, _):
        result = await engine.ask(chat.id, "u" * 120)
        found = (await engine._store.facts(chat.id)).compaction
        spent = [entry.usage for entry in await engine.usage(chat.id)]
    assert (found.context_tokens, found.context_limit, found.estimated) == known
    assert result.usage == spent[0] == finish.get("usage", Usage(partial=True))


@tool
async def look(at: int) -> str:
    """Look."""
    return f"seen {at}"


@pytest.mark.parametrize("settings", [QUICK, LATER], ids=["at once", "with the end"])
@pytest.mark.parametrize("end", ["whole", "failed"])
async def test_all_text_is_shown_by_the_end_of_a_reply(open_chat: OpenChat, settings: Settings, end: str) -> None:
    chunks = ["one ", "two ", "three"]
    broken = {"error": ModelError("bad_request", message="no more"), "error_after": 3} if end == "failed" else {}
    async with open_chat([Reply("".join(chunks), chunks=chunks, **broken)], settings=settings) as (engine, chat, _):
        result = await engine.ask(chat.id, "hi")
        parts = [event for event in await events_of(engine, chat.id) if isinstance(event, PartEvent)]
        assert "".join(event.part.delta or "" for event in parts) == "one two three"
        assert result.messages[-1].text == "one two three"
        assert result.messages[-1].partial == (end == "failed")
        assert result.stop_reason == ("error" if end == "failed" else "end_turn")
        await assert_told_right(engine, chat.id)


async def test_failed_reply_keeps_origin_and_usage(open_chat: OpenChat) -> None:
    parts = [ModelPart("text_delta", text="half"), ModelPart("usage", usage=Usage(input_tokens=7))]
    error = ModelError("bad_request", message="é" * 400, status=400)
    settings = Settings(coalesce=0, output_limit_bytes=100)
    async with open_chat([Reply(parts=parts, error=error, error_after=2)], settings=settings) as (engine, chat, model):
        result = await engine.ask(chat.id, "hi")
        (spent,) = await engine.usage(chat.id)
    answer, failure = result.messages[-1], result.chat.last_error
    assert (answer.text, answer.partial, answer.model) == ("half", True, model.name)
    assert (spent.usage.input_tokens, result.usage.input_tokens) == (7, 7)
    assert (failure.kind, failure.status, failure.step, failure.attempt) == ("bad_request", 400, 1, 1)
    assert len(failure.message.encode()) < 200
