"""Replies as the machine stores them: which parts are kept, which calls are planned, and what an error says."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.leased import leased_chat
from support.life import said, streaming
from support.runtimes import only_agent
from support.shelf import stands
from turnwise import ChatUnreadable, ClientTool, ModelError, Settings, Usage, tool
from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.held_attempt import HeldAttempt
from turnwise.engine.reply import error_info, origin_of, partial_reply, planned, shown_reply
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.providers.protocol import ModelPart, ModelRequest, ToolSpec
from turnwise.providers.reply_builder import ReplyBuilder
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.arguments import Origin
from turnwise.states.events import PartDelta, PartEvent
from turnwise.states.messages import Part, ReasoningPart, SourcePart, ToolCallPart, ToolResultPart
from turnwise.states.names import ChatState, Executor


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(policy="ask")
async def pay() -> str:
    """Pay."""
    return "paid"


CUTTING = Settings(output_limit_bytes=100)
BOX = Toolbox({"look": look, "pay": pay}, Settings())
_PROFILE = replace(
    streaming().facts.profile, client_tools=(ClientTool("ask", "Ask.", {"type": "object", "required": ["n"]}),)
)
FACTS = replace(streaming().facts, profile=_PROFILE)


def call(name: str, call_id: str = "c", executor: Executor = Executor.local, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name=name, arguments=arguments, executor=executor)


@pytest.mark.parametrize(
    ("part", "is_kept"),
    [
        (said("x")[0], True),
        (said(" \n")[0], False),
        (said("")[0], False),
        (ReasoningPart(text="hm"), True),
        (ReasoningPart(text=" "), False),
        (ReasoningPart(text="", signature="s"), True),
        (SourcePart(url="https://a.example"), True),
        (call("search", executor=Executor.provider), True),
    ],
    ids=str,
)
def test_blank_parts_are_not_stored(part: Part, is_kept: bool) -> None:  # noqa: FBT001
    assert planned([part], FACTS, BOX) == ((part,) if is_kept else (), ())


ORIGIN = Origin(model="m", provider="p")


@pytest.mark.parametrize("is_heard", [True, False])
async def test_shown_reply_has_usage_its_holder_knows(*, is_heard: bool) -> None:
    leased, shelf = leased_chat()
    step, attempt = leased.facts.step.number, leased.facts.step.attempt
    for of in (attempt - 1, attempt):
        event = PartEvent(step=step, attempt=of, index=0, part=PartDelta(type="text", delta=f"words {of}"))
        await shelf.journal("c", 1, ChatState.streaming, [event])
    builder = ReplyBuilder()
    builder.add(ModelPart("text_delta", text=f"words {attempt} and more"))
    builder.add(ModelPart("usage", usage=Usage(input_tokens=7)))
    held = HeldAttempt(step=step, attempt=attempt, reply=builder, origin=ORIGIN) if is_heard else None
    kept = await shown_reply(leased.runtime, leased.facts, held)
    assert kept is not None
    assert (kept.step, kept.attempt, kept.parts) == (step, attempt, said(f"words {attempt}"))
    assert (kept.usage, kept.origin) == ((Usage(input_tokens=7), ORIGIN) if is_heard else (None, None))


def test_calls_are_planned_with_index_and_executor() -> None:
    parts = [
        call("ask", "a", n=1),
        *said("x"),
        call("search", "p", Executor.provider),
        call("pay", "b", Executor.client),
        call("look", "c", Executor.client),
        call("ask", "d", Executor.client),
        call("gone", "e"),
    ]
    kept, calls = planned(parts, FACTS, BOX)
    assert [(one.call_id, one.index, one.executor, one.refusal is not None) for one in calls] == [
        ("a", 0, Executor.client, False),
        ("b", 1, Executor.client, False),
        ("c", 2, Executor.local, False),
        ("d", 3, Executor.local, True),
        ("e", 4, Executor.local, True),
    ]
    told = [(part.call_id, part.executor) for part in kept if isinstance(part, ToolCallPart)]
    assert told == [
        ("a", Executor.client),
        ("p", Executor.provider),
        ("b", Executor.local),
        ("c", Executor.local),
        ("d", Executor.local),
        ("e", Executor.local),
    ]
    assert len(kept) == len(parts)


def test_partial_reply_drops_unanswered_provider_calls() -> None:
    answered = ToolResultPart(call_id="p", name="search", output="found")
    parts = [*said("x"), call("search", "p", Executor.provider), answered, call("search", "q", Executor.provider)]
    usage, origin = Usage(input_tokens=1), Origin(model="m", provider="p")
    kept = partial_reply([*parts, call("look", "c")], FACTS, BOX, usage=usage, origin=origin)
    assert [getattr(part, "call_id", "") for part in kept.parts] == ["", "p", "p", "c"]
    assert [one.call_id for one in kept.calls] == ["c"]
    assert (kept.step, kept.attempt, kept.usage, kept.origin) == (
        FACTS.step.number,
        FACTS.step.attempt,
        usage,
        origin,
    )


def request(*tools: ToolSpec, **parameters: Any) -> ModelRequest:
    return ModelRequest(purpose="step", chat_id="c", messages=[], tools=tools, parameters=parameters)


def asking(model: ScriptedModel) -> Configuration:
    return only_agent(model).configuration(stands(ChatState.waiting).profile)


def test_origin_digests_tools_and_parameters() -> None:
    model = asking(ScriptedModel([]))
    spec = ToolSpec("look", "Look.", {"type": "object"})
    plain = origin_of(model, request())
    assert plain == Origin(model=model.model.name, provider=model.model.provider)
    same = origin_of(model, request(spec, top_k=1, seed=2))
    assert same == origin_of(model, request(spec, seed=2, top_k=1))
    others = [
        origin_of(model, request(ToolSpec(name, about, schema), top_k=1, seed=2))
        for name, about, schema in (
            ("look2", "Look.", {"type": "object"}),
            ("look", "Look!", {"type": "object"}),
            ("look", "Look.", {}),
        )
    ]
    digests = {one.tools_digest for one in (plain, same, *others)}
    assert len(digests) == 5
    assert {one.parameters_digest for one in (same, *others)} == {same.parameters_digest}
    assert (
        len({plain.parameters_digest, same.parameters_digest, origin_of(model, request(seed=3)).parameters_digest}) == 3
    )


def test_model_error_is_stored_and_cut_at_the_limit() -> None:
    error = ModelError("rate_limit", message="slow down " * 50, status=429, retryable=False)
    info = error_info(error, FACTS.step, CUTTING)
    assert (info.kind, info.status, info.retryable) == ("rate_limit", 429, False)
    assert (info.step, info.attempt) == (FACTS.step.number, FACTS.step.attempt)
    assert info.message.startswith("slow down")
    assert len(info.message.encode()) < 200
    assert error_info(ModelError("network", message="half \ud800"), FACTS.step, CUTTING).message.encode()


def test_unreadable_chat_error_names_the_remedy() -> None:
    """It does not say that nothing was written: the attempt was, and this failure is."""
    info = error_info(ChatUnreadable("messages.body", "no JSON", chat_id="c7"), FACTS.step, Settings())
    assert (info.kind, info.retryable, info.step) == ("unreadable", False, FACTS.step.number)
    assert all(word in info.message for word in ("messages.body", "'c7'", "no JSON", "turnwise doctor"))
    assert "nothing was written" not in info.message


def test_other_errors_are_internal_and_name_the_step() -> None:
    info = error_info(OSError("disk"), FACTS.step, CUTTING)
    assert (info.kind, info.retryable) == ("internal", False)
    assert f"step {FACTS.step.number}" in info.message
    assert "disk" in info.message
