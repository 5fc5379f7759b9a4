"""What a parent is told of a helper that has come to rest: its answer, or why there is none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from support.life import BLANK, NOW, said
from turnwise import Settings
from turnwise.engine.agents.agent import Agent
from turnwise.engine.agents.agents import Agents
from turnwise.engine.agents.answer_format import ANSWER_TOOL
from turnwise.engine.prompt.views import erased
from turnwise.engine.worker.helper_answer import result_of
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, ToolCallPart, ToolResultPart
from turnwise.states.names import Audience, CallStatus, ChatState, Executor, StopReason


class Form(BaseModel):
    """What one of the agents answers with."""

    n: int


class Loose(BaseModel):
    """What another answers with, in which nothing has to be said."""

    n: int = 1


AGENTS = Agents(
    [
        Agent("free", ScriptedModel([])),
        Agent("formal", ScriptedModel([]), output=Form),
        Agent("loose", ScriptedModel([]), output=Loose),
    ],
    Settings(),
)
ENDED, CUT, STEPS, AFTER_TOOL = (
    StopReason.end_turn,
    StopReason.max_tokens,
    StopReason.max_steps,
    StopReason.stop_after_tool,
)
FORM = {"n": 1}


def helper(agent: str, reason: StopReason | None = ENDED, **fields: Any) -> Facts:
    profile = replace(BLANK.profile, agent=agent)
    return replace(BLANK, profile=profile, state=fields.pop("state", ChatState.waiting), stop_reason=reason, **fields)


def reply(text: str = "", *calls: ToolCallPart, **fields: Any) -> Message:
    return message("assistant", *(said(text) if text else ()), *calls, **fields)


def message(role: Any, *parts: Any, **fields: Any) -> Message:
    return Message(id="m", role=role, parts=parts, turn=1, step=1, created_at=NOW, position=1, **fields)


def call(name: str = ANSWER_TOOL, executor: Executor = Executor.local) -> ToolCallPart:
    return ToolCallPart(call_id="a", name=name, arguments=FORM, executor=executor)


def result(outcome: CallStatus = CallStatus.succeeded) -> Message:
    return message("tool", ToolResultPart(call_id="a", name=ANSWER_TOOL, output="taken", outcome=outcome))


@pytest.mark.parametrize(
    ("agent", "reason", "messages", "answer"),
    [
        ("free", ENDED, [reply("first"), reply("last")], "last"),
        ("free", AFTER_TOOL, [reply("look", call("look")), result()], "look"),
        ("free", ENDED, [reply("found", call("search", Executor.provider))], "found"),
        ("formal", ENDED, [reply("", call()), result()], FORM),
        ("loose", ENDED, [reply("{}")], {}),
        ("gone", ENDED, [reply("", call()), result()], FORM),
        ("gone", ENDED, [reply("as it is")], "as it is"),
        ("formal", ENDED, [reply("free then", agent="free"), reply("a summary", audience=Audience.model)], "free then"),
        ("free", ENDED, [reply('{"n": 1}', agent="formal")], FORM),
    ],
)
def test_last_reply_of_the_turn_is_the_answer(
    agent: str, reason: StopReason, messages: list[Message], answer: object
) -> None:
    assert result_of(helper(agent, reason), messages, AGENTS) == (answer, False)


@pytest.mark.parametrize(
    ("agent", "reason", "messages", "words"),
    [
        ("free", STEPS, [reply("First"), reply("Then"), reply("", call("look"))], "max_steps. Its last words: Then"),
        ("free", ENDED, [reply("I ask", call("look")), reply()], "end_turn. Its last words: I ask"),
        ("free", ENDED, [reply("It is", call("look"))], "end_turn. Its last words: It is"),
        ("free", ENDED, [], "end_turn."),
        ("free", None, [], "it was never asked."),
        ("formal", ENDED, [reply("not sure")], "end_turn. Its last words: not sure"),
        ("formal", CUT, [reply('{"n": 1')], 'max_tokens. Its last words: {"n": 1'),
        ("free", StopReason.unknown, [reply("It is")], "unknown. Its last words: It is"),
        ("formal", ENDED, [reply("", call()), result(CallStatus.failed)], "end_turn."),
        ("formal", AFTER_TOOL, [reply("look", call("look")), result()], "stop_after_tool. Its last words: look"),
    ],
)
def test_turn_without_an_answer_is_an_error_with_a_reason(
    agent: str, reason: StopReason | None, messages: list[Message], words: str
) -> None:
    problem = f"The helper ended without an answer: {words}"
    assert result_of(helper(agent, reason), messages, AGENTS) == (problem, True)


@pytest.mark.parametrize("agent", ["free", "loose", "gone"])
def test_erased_reply_is_no_answer(agent: str) -> None:
    """Neither the word that stands for it, nor what a form makes of arguments that are gone."""
    for said_last in ([reply("It is seven")], [reply("", call()), result()]):
        problem = "What the helper said last was erased."
        blank = [erased(one) for one in said_last]
        assert result_of(helper(agent, AFTER_TOOL if said_last[1:] else ENDED), blank, AGENTS) == (problem, True)


def test_failed_or_stopped_subagent_has_no_answer() -> None:
    failed = helper("free", state=ChatState.error, last_error=ErrorInfo(kind="internal", message="out of luck"))
    for facts, problem in (
        (failed, "The helper could not finish its task: out of luck"),
        (replace(failed, last_error=None), "The helper could not finish its task: an unknown error"),
        (helper("free", state=ChatState.interrupted), "The helper was stopped before it had finished its task."),
    ):
        assert result_of(facts, [reply("an answer")], AGENTS) == (problem, True)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (reply("Paid 30."), "Paid 30."),
        (reply("", ToolCallPart(call_id="c", name=ANSWER_TOOL, arguments={"m": 1})), '{"m": 1}'),
        (erased(reply("Paid 30.")), None),
    ],
    ids=["text", "tool", "erased"],
)
def test_answer_without_the_form_is_an_answer_with_a_note(last: Message, words: str | None) -> None:
    """The helper may have paid: a check of what it says is no failure of what it did."""
    info = ErrorInfo(kind="invalid_answer", message="no form")
    told, is_error = result_of(helper("formal", None, state=ChatState.error, last_error=info), [last], AGENTS)
    if words is None:
        assert (told, is_error) == ("The helper could not finish its task: no form", True)
    else:
        assert isinstance(told, str)
        assert (told.split("\n[")[0], "What the helper did stands" in told, is_error) == (words, True, False)
