"""Requests: what of a chat goes into one, who may change it, and what a summary is asked with."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.leased import Stubborn, leased_chat, streams
from support.life import NOW, said
from turnwise import ClientTool, CompactionPolicy, LoopState, Message, RequestContext, Settings, tool
from turnwise.engine.jobs.request import (
    build_request,
    parameters_for_summaries,
    parameters_for_titles,
    prepared_for,
    request_of,
)
from turnwise.engine.prompt.hooks import Hooks
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.facts import Profile, TurnFacts
from turnwise.states.messages import ToolCallPart, ToolResultPart


@tool
async def look() -> str:
    """Look."""
    return "seen"


ASK = ClientTool("ask", "Ask.", {"type": "object"})
PROFILE = Profile(
    created_at=NOW, system="Be brief.", client_tools=(ASK,), owner="ann", metadata={"tags": ["a"]}, title="t"
)


def message(position: int, role: Any = "user", *, turn: int = 1, step: int = 0, **fields: Any) -> Message:
    known: dict[str, Any] = {"parts": said(f"words {position}")}
    return Message(
        **known | fields, id=f"m{position}", role=role, turn=turn, step=step, created_at=NOW, position=position
    )


def asks(position: int, call_id: str) -> Message:
    return message(
        position, "assistant", step=1, parts=(ToolCallPart(call_id=call_id, name="look", arguments={"at": [1]}),)
    )


def answers(position: int, call_id: str) -> Message:
    return message(position, "tool", step=1, parts=(ToolResultPart(call_id=call_id, name="look", output="seen"),))


PAIRED = [message(1), asks(2, "a"), answers(3, "a")]


@pytest.mark.parametrize(("system", "asked"), [("", None), (" \n\t", None), (" x ", " x "), (None, None)])
async def test_blank_system_prompt_is_not_sent(system: str | None, asked: str | None) -> None:
    """Some providers refuse a request with a blank text."""
    leased, _ = leased_chat(PAIRED, facts=streams(profile=replace(PROFILE, system=system)), tools=[look])
    assert (await build_request(leased)).system == asked


async def test_request_holds_system_tools_and_parameters() -> None:
    parameters = {"temperature": 0.5, "provider_options": {"seed": 7}}
    settings = Settings(parameters=parameters)
    leased, _ = leased_chat(PAIRED, facts=streams(profile=PROFILE), settings=settings, tools=[look])
    request = await build_request(leased)
    assert (request.purpose, request.chat_id, request.step, request.attempt) == ("step", "c", 3, 2)
    assert (request.system, [spec.name for spec in request.tools]) == ("Be brief.", ["look", "ask"])
    assert request.messages == PAIRED
    assert request.parameters == parameters
    request.parameters["provider_options"].clear()
    assert (await build_request(leased)).parameters == parameters, "each request has its own"


@pytest.mark.parametrize("last", [message(4, "assistant", turn=2, step=5), message(4, turn=2, step=5)])
async def test_reminders_come_last_in_current_turn(last: Message) -> None:
    states: list[LoopState] = []

    def remind(state: LoopState) -> list[str]:
        states.append(state)
        return ["one", "two"]

    settings = Settings(continue_prompt="Go on.")
    hooks = Hooks(reminders=(remind, lambda _state: ["three"]))
    facts = streams(turn=TurnFacts(number=2, steps=4))
    leased, _ = leased_chat([*PAIRED, last], facts=facts, settings=settings, hooks=hooks)
    request = await build_request(leased)
    more = request.messages[4:]
    goes_on = [("user", "Go on.")] if last.role == "assistant" else []
    reminders = [("system", f"<reminder>{word}</reminder>") for word in ("one", "two", "three")]
    assert [(one.role, one.text) for one in more] == [*goes_on, *reminders]
    assert {(one.turn, one.step) for one in more} == {(2, 5)}
    assert [(state.step, state.call_count) for state in states] == [(4, 0)], "calls of another turn do not count"


async def test_every_call_has_one_result_in_a_request() -> None:
    def results(messages: list[Message]) -> list[str]:
        return [one.result.call_id for one in messages if one.result is not None]

    broken = [message(1), asks(2, "a"), message(3)]
    leased, _ = leased_chat(broken)
    assert results((await build_request(leased)).messages) == ["a"]

    leased, _ = leased_chat(PAIRED, hooks=Hooks(prepare_messages=lambda messages: messages[:-1]))
    request = await build_request(leased)
    assert results(request.messages) == ["a"]
    assert request.messages[-1].result != PAIRED[-1].result, "what a hook has left out is not sent"

    leased, _ = leased_chat()
    assert results((await request_of(leased, "summary", broken, {})).messages) == ["a"]


async def test_hook_changes_one_request_only() -> None:
    contexts: list[RequestContext] = []

    def prepare(messages: list[Message], context: RequestContext) -> list[Message]:
        contexts.append(context)
        context.metadata["tags"].append("b")
        for one in messages:
            for call in one.calls:
                call.arguments["at"].append(2)
        return messages[1:2]

    leased, _ = leased_chat(PAIRED, facts=streams(profile=PROFILE), hooks=Hooks(prepare_messages=prepare))
    for purpose in ("step", "summary"):
        (changed,) = await prepared_for(leased.runtime, leased.configuration, leased.facts, purpose, PAIRED)  # type: ignore[arg-type]
        assert changed.calls[0].arguments == {"at": [1, 2]}
    assert [(one.purpose, one.chat_id, one.owner, one.step) for one in contexts] == [
        ("step", "c", "ann", 3),
        ("summary", "c", "ann", 3),
    ]
    assert [one.metadata for one in contexts] == [{"tags": ["a", "b"]}] * 2
    assert (PROFILE.metadata, PAIRED[1].calls[0].arguments) == ({"tags": ["a"]}, {"at": [1]})


async def test_hook_that_never_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hook = Stubborn()
    leased, _ = leased_chat(PAIRED, hooks=Hooks(prepare_messages=hook))  # type: ignore[arg-type]
    await hook.left_behind(
        leased, lambda: prepared_for(leased.runtime, leased.configuration, leased.facts, "step", PAIRED)
    )
    (line,) = [record.getMessage() for record in caplog.records if "user_code_left_behind" in record.getMessage()]
    assert "prepare_messages" in line
    assert "chat_id=c" in line


FORCING = {
    "tool_choice": "required",
    "parallel_tool_calls": True,
    "response_format": {"type": "json_object"},
    "stop": ["x"],
    "stop_sequences": ["x"],
    "response_schema": {},
    "response_json_schema": {},
    "response_mime_type": "application/json",
    "output_format": {},
    "output_config": {},
    "text": {},
}


@pytest.mark.parametrize("own_model", [True, False])
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"seed": 1, **FORCING}, {"seed": 1}),
        ({"seed": 1, "extra_body": {"top": 2, **FORCING}}, {"seed": 1, "extra_body": {"top": 2}}),
        ({"extra_body": "text"}, {"extra_body": "text"}),
        ({}, {}),
        (None, None),
    ],
)
def test_summary_request_drops_forcing_parameters(
    options: dict[str, Any] | None, left: dict[str, Any] | None, *, own_model: bool
) -> None:
    extra = {} if options is None else {"provider_options": options}
    parameters = {"temperature": 0.5, "max_output_tokens": 9000, "tool_choice": "required", **extra}
    policy = CompactionPolicy(model=ScriptedModel([]) if own_model else None)
    leased, _ = leased_chat(settings=Settings(parameters=parameters, compaction=policy))
    expected = {} if left is None or own_model else {"provider_options": left}
    assert parameters_for_summaries(leased) == {"temperature": 0.5, "max_output_tokens": 9000, **expected}
    assert leased.runtime.settings.parameters == parameters, "those of the steps are as they were"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize(
    ("most", "is_kept"), [(300, False), (4095.0, False), (4096, True), ("300", True), (True, True)]
)
def test_small_provider_output_limit_is_dropped(name: str, most: Any, *, is_kept: bool) -> None:
    options = {"seed": 1, name: most, "extra_body": {"top": 2, name: most}}
    settings = Settings(parameters={"provider_options": options})
    leased, _ = leased_chat(settings=settings)
    left = options if is_kept else {"seed": 1, "extra_body": {"top": 2}}
    assert parameters_for_summaries(leased) == parameters_for_titles(settings) == {"provider_options": left}


@pytest.mark.parametrize(("most", "left"), [(100, {}), (4095, {}), (4096, {"max_output_tokens": 4096}), (None, ...)])
def test_small_output_limit_is_dropped(most: int | None, left: Any) -> None:
    """A large one stays: without it a provider may allow less than the reasoning that it was asked for."""
    parameters = {"max_output_tokens": most}
    settings = Settings(parameters=parameters)
    leased, _ = leased_chat(settings=settings)
    expected = parameters if left is ... else left
    assert parameters_for_summaries(leased) == parameters_for_titles(settings) == expected
    assert settings.parameters == parameters
