"""Requests: their messages, changes by hooks, and the parameters of summaries."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.engine import chats
from tests.engine.leased import leased_chat, streams
from tests.engine.shelf import stands

from support.engines import OpenChat
from support.life import NOW, text_parts
from turnwise import ClientTool, CompactionPolicy, LoopState, Message, Settings, history_was_compacted, tool
from turnwise.engine.jobs.request import (
    Requests,
    parameters_for_titles,
    prepared_for,
)
from turnwise.engine.prompt.hooks import (
    Hooks,
    PastCall,
    ReminderText,
    RequestContext,
    collect_reminders,
    loop_state,
    run_prepare_hook,
)
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.facts import CompactionFacts, HistoryFacts, Profile, TurnFacts
from turnwise.states.messages import ToolCallPart, ToolResultPart
from turnwise.states.names import Audience

ASK = ClientTool("ask", "Ask.", {"type": "object"})
PROFILE = Profile(
    created_at=NOW, system="Be brief.", client_tools=(ASK,), owner="ann", metadata={"tags": ["a"]}, title="t"
)
CONTEXT = RequestContext(chat_id="c", owner=None, metadata={}, purpose="step", step=1)
NO_CONTEXT = "no context"


@tool
async def look(at: str = "") -> str:
    """Look at something."""
    if at == "nothing":
        raise LookupError(at)
    return f"seen {at}"


def message(position: int, role: Any = "user", *, turn: int = 1, step: int = 0, **fields: Any) -> Message:
    content: dict[str, Any] = {"parts": text_parts(f"words {position}")}
    return Message(
        **content | fields, id=f"m{position}", role=role, turn=turn, step=step, created_at=NOW, position=position
    )


def asks(position: int, *call_ids: str) -> Message:
    parts = tuple(ToolCallPart(call_id=call_id, name="look", arguments={"at": [call_id]}) for call_id in call_ids)
    return message(position, "assistant", step=1, parts=parts)


def answers(position: int, call_id: str, *, is_error: bool = False) -> Message:
    part = ToolResultPart(call_id=call_id, name="look", output="seen", is_error=is_error, outcome="succeeded")
    return message(position, "tool", step=1, parts=(part,))


PAIRED = [message(1), asks(2, "a"), answers(3, "a")]


@pytest.mark.parametrize(("system", "sent"), [("", None), (" \n\t", None), (" x ", " x "), (None, None)])
async def test_blank_system_prompt_is_not_sent(system: str | None, sent: str | None) -> None:
    """Some providers refuse a request with a blank text."""
    leased, _ = leased_chat(PAIRED, facts=streams(profile=replace(PROFILE, system=system)), tools=[look])
    assert (await Requests(leased).of_step()).system == sent


async def test_request_holds_system_tools_and_parameters() -> None:
    parameters = {"temperature": 0.5, "provider_options": {"seed": 7}}
    settings = Settings(parameters=parameters)
    leased, _ = leased_chat(PAIRED, facts=streams(profile=PROFILE), settings=settings, tools=[look])
    request = await Requests(leased).of_step()
    assert (request.purpose, request.chat_id, request.step, request.attempt) == ("step", "c", 3, 2)
    assert (request.system, [spec.name for spec in request.tools]) == ("Be brief.", ["look", "ask"])
    assert request.messages == PAIRED
    assert request.parameters == parameters
    request.parameters["provider_options"].clear()
    assert (await Requests(leased).of_step()).parameters == parameters, "each request has its own"


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
    request = await Requests(leased).of_step()
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
    assert results((await Requests(leased).of_step()).messages) == ["a"]

    leased, _ = leased_chat(PAIRED, hooks=Hooks(prepare_messages=lambda messages: messages[:-1]))
    request = await Requests(leased).of_step()
    assert results(request.messages) == ["a"]
    assert request.messages[-1].result != PAIRED[-1].result, "what a hook has left out is not sent"

    leased, _ = leased_chat()
    assert results((await Requests(leased).build("summary", broken, {})).messages) == ["a"]


# Hooks


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
        assert changed.calls[0].arguments == {"at": ["a", 2]}
    expected = [("step", "c", "ann", 3), ("summary", "c", "ann", 3)]
    assert [(one.purpose, one.chat_id, one.owner, one.step) for one in contexts] == expected
    assert [one.metadata for one in contexts] == [{"tags": ["a", "b"]}] * 2
    assert (PROFILE.metadata, PAIRED[1].calls[0].arguments) == ({"tags": ["a"]}, {"at": ["a"]})


SEEN: list[Any] = []


def note(messages: list[Message], context: Any = NO_CONTEXT) -> list[Message]:
    SEEN.append(context)
    return messages[:1]


async def note_later(messages: list[Message], context: RequestContext) -> list[Message]:
    return note(messages, context)


@pytest.mark.parametrize(
    ("hook", "context"),
    [
        (lambda messages: note([*messages]), NO_CONTEXT),
        (lambda messages, anything: note([*messages], anything), CONTEXT),
        (lambda messages, context=None: note(messages, context), CONTEXT),
        (lambda messages, strict=NO_CONTEXT: note(messages, strict), NO_CONTEXT),
        (lambda messages, *, context=NO_CONTEXT: note(messages, context), NO_CONTEXT),
        (lambda messages, *context: note([*messages], *context), NO_CONTEXT),
        (functools.partial(lambda first, messages, context: note(messages, context), 1), CONTEXT),
        (note_later, CONTEXT),
    ],
)
async def test_hook_gets_context_if_it_takes_one(hook: Any, context: Any) -> None:
    SEEN.clear()
    messages = [message(1), message(2)]
    assert await run_prepare_hook(hook, messages, CONTEXT) == messages[:1]
    assert [context] == SEEN


@pytest.mark.parametrize(("returned", "sent"), [(None, [message(1)]), ([], []), ((), [])])
async def test_hook_result_is_sent_and_none_changes_nothing(returned: Any, sent: list[Message]) -> None:
    assert await run_prepare_hook(lambda _messages: returned, [message(1)], CONTEXT) == sent


@pytest.mark.parametrize(("returned", "kind"), [([{"role": "user"}], "dict"), ([None], "NoneType"), ("x", "str")])
async def test_hook_must_return_messages(returned: Any, kind: str) -> None:
    right = rf"^prepare_messages has to return a list of Message, or None; it returned .*\b{kind}\b"
    with pytest.raises(TypeError, match=right):
        await run_prepare_hook(lambda _messages: returned, [], CONTEXT)


# Reminders


async def test_request_names_producer_and_severity_of_reminders() -> None:
    def hurry(_state: LoopState) -> list[ReminderText | str]:
        return [ReminderText("now", severity="error"), "soon", ReminderText("", severity="warning")]

    leased, _ = leased_chat([*PAIRED, PAIRED[0]], hooks=Hooks(reminders=(hurry, functools.partial(hurry))))
    request = await Requests(leased).of_step()
    assert [message.text for message in request.messages[-4:]] == [
        f"<reminder>{text}</reminder>" for text in ("now", "soon", "now", "soon")
    ]
    named = [(one.producer.rpartition(".")[2], one.severity) for one in request.reminders]
    assert named == [("hurry", "error"), ("hurry", "info")] * 2


@pytest.mark.parametrize(("returned", "kind"), [(5, "int"), (["x", 5], "int"), ({"a": 1}, "dict")])
async def test_reminder_must_return_texts(returned: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"^a reminder has to return text, texts or None; it returned .*\b{kind}\b"):
        await collect_reminders([lambda _state: returned], loop_state(stands(), [], []))


async def test_reminder_texts_are_flattened() -> None:
    async def later(_state: LoopState) -> str:
        return "later"

    returned: list[Any] = ["a", ["b", "", None], ("c",), iter(["d"]), {"e"}, None, "", []]
    reminders: list[Any] = [lambda _state, one=one: one for one in returned]
    texts = [text for text, _ in await collect_reminders([*reminders, later], loop_state(stands(), [], []))]
    assert texts == [*"abcde", "later"]


def past(call_id: str, *, succeeded: bool = True) -> PastCall:
    return PastCall("look", succeeded=succeeded, call_id=call_id, arguments={"at": [call_id]}, output="seen")


def test_loop_state_holds_last_five_answered_calls() -> None:
    turn = [
        message(1),
        asks(2, "a", "b"),
        answers(3, "b", is_error=True),
        answers(4, "a"),
        asks(5, "c", "d", "open"),
        answers(6, "c"),
        answers(7, "d"),
        asks(8, "e", "f", "g"),
        *(answers(9, name) for name in "gfe"),
    ]
    state = loop_state(stands(), turn[:4], [])
    assert (state.call_count, state.last_calls) == (2, (past("a"), past("b", succeeded=False)))
    assert state.last_call == past("b", succeeded=False)
    whole = loop_state(stands(), turn, [])
    assert (whole.call_count, whole.last_call) == (7, past("g"))
    assert [one.call_id for one in whole.last_calls] == ["c", "d", "e", "f", "g"]


@pytest.mark.parametrize(
    ("boundary", "position", "audience", "reminds"),
    [
        (0, 1, Audience.everyone, False),
        (0, 1, Audience.model, False),  # a summary of a chat elsewhere
        (5, 6, Audience.everyone, False),  # the context was cleared
        (5, 6, Audience.model, True),
        (5, 2, Audience.everyone, True),  # nothing but what was carried
    ],
)
def test_history_was_compacted_while_summary_is_visible(
    boundary: int, position: int, audience: Audience, *, reminds: bool
) -> None:
    facts = stands(compaction=CompactionFacts(count=3), history=HistoryFacts(length=7, boundary=boundary))
    first = replace(message(1), position=position, audience=audience)
    texts = history_was_compacted(loop_state(facts, [], [first, replace(first, position=7)]))
    assert ["3 time" in text for text in texts] == [True] * reminds
    assert not history_was_compacted(loop_state(facts, [], []))


async def test_reminder_is_sent_with_one_request_only(open_chat: OpenChat) -> None:
    script = [Reply("", calls=[Call("look", {"at": "a"})]), "done"]
    async with open_chat(script, tools=[look], reminders=[lambda state: f"step {state.step}"]) as (engine, chat, model):
        await engine.ask(chat.id, "hello")
        first, second = (chats.contents(request.messages) for request in model.requests)
        assert first == [("user", "hello"), ("system", "<reminder>step 1</reminder>")]
        assert second[-2:] == [("tool", "seen a"), ("system", "<reminder>step 2</reminder>")]
        assert ("system", "<reminder>step 1</reminder>") not in second
        for view in ("user", "raw", "model"):
            assert "system" not in [role for role, _ in chats.contents(await engine.messages(chat.id, view=view))]


async def test_calls_before_compaction_stay_counted(open_chat: OpenChat) -> None:
    """A reminder that counts calls or finds repetitions must work after a compaction."""
    states: list[LoopState] = []

    def keep(state: LoopState) -> Sequence[str]:
        states.append(state)
        return ()

    def looks(at: str, tokens: int) -> Reply:
        return Reply("", calls=[Call("look", {"at": at})], usage=(tokens, 1))

    done = Reply("done", usage=(20, 1))
    replies = [looks("a", 20), looks("a", 90), looks("nothing", 20), done, looks("c", 20), done]
    async with open_chat(replies, context_limit=100, tools=[look], reminders=[keep]) as (engine, chat, _):
        await engine.ask(chat.id, "hello")
        assert [(state.call_count, state.compactions) for state in states] == [(0, 0), (1, 0), (2, 1), (3, 1)]
        expected = [("a", True), ("a", True), ("nothing", False)]
        assert [(call.arguments["at"], call.succeeded) for call in states[-1].last_calls] == expected
        assert (states[2].context_tokens, states[2].context_limit) == (None, 100)
        states.clear()
        await engine.ask(chat.id, "and now?")
        assert [state.call_count for state in states] == [0, 1]


# Requests for summaries and titles

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
        ({"seed": 1, "extra_body": {"top": 2, **FORCING}, **FORCING}, {"seed": 1, "extra_body": {"top": 2}}),
        ({"extra_body": "text"}, {"extra_body": "text"}),
        (None, None),
    ],
    ids=["forcing", "text", "none"],
)
def test_summary_request_drops_forcing_parameters(options: Any, left: Any, *, own_model: bool) -> None:
    extra = {} if options is None else {"provider_options": options}
    parameters = {"temperature": 0.5, "max_output_tokens": 9000, "tool_choice": "required", **extra}
    policy = CompactionPolicy(model=ScriptedModel([]) if own_model else None)
    leased, _ = leased_chat(settings=Settings(parameters=parameters, compaction=policy))
    expected = {} if left is None or own_model else {"provider_options": left}
    assert Requests(leased).parameters_for_summaries() == {"temperature": 0.5, "max_output_tokens": 9000, **expected}
    assert leased.runtime.settings.parameters == parameters, "those of the steps are as they were"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize(("most", "is_kept"), [(4095.0, False), (4096, True), ("300", True), (True, True)])
def test_small_provider_output_limit_is_dropped(name: str, most: Any, *, is_kept: bool) -> None:
    options = {"seed": 1, name: most, "extra_body": {"top": 2, name: most}}
    settings = Settings(parameters={"provider_options": options})
    leased, _ = leased_chat(settings=settings)
    left = options if is_kept else {"seed": 1, "extra_body": {"top": 2}}
    assert Requests(leased).parameters_for_summaries() == parameters_for_titles(settings) == {"provider_options": left}


@pytest.mark.parametrize(("most", "is_kept"), [(4095, False), (4096, True), (None, True)])
def test_small_output_limit_is_dropped(most: int | None, *, is_kept: bool) -> None:
    """A large limit stays: without it a provider may allow less output than the requested reasoning."""
    parameters = {"max_output_tokens": most}
    settings = Settings(parameters=parameters)
    leased, _ = leased_chat(settings=settings)
    expected = parameters if is_kept else {}
    assert Requests(leased).parameters_for_summaries() == parameters_for_titles(settings) == expected
