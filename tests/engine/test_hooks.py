"""Hooks: how they are called, on what, and what a reminder producer is told of the turn."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from support.life import NOW, said
from support.shelf import stands
from turnwise import LoopState, Message, RequestContext, Usage, history_was_compacted
from turnwise.engine.prompt.hooks import PastCall, loop_state, prepared, reminded
from turnwise.states.facts import CompactionFacts, HistoryFacts, TurnFacts
from turnwise.states.messages import ToolCallPart, ToolResultPart
from turnwise.states.names import Audience

CONTEXT = RequestContext(chat_id="c", owner=None, metadata={}, purpose="step", step=1)
NO_CONTEXT = "no context"


def message(role: Any, *parts: Any, turn: int = 1) -> Message:
    return Message(id="m", role=role, parts=parts, turn=turn, step=1, created_at=NOW)


def call(call_id: str) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name=f"look-{call_id}", arguments={"at": [call_id]})


def result(call_id: str, *, is_error: bool = False) -> Message:
    part = ToolResultPart(
        call_id=call_id, name=f"look-{call_id}", output={"seen": [call_id]}, is_error=is_error, outcome="succeeded"
    )
    return message("tool", part)


# A hook that prepares messages

SEEN: list[Any] = []


def note(messages: list[Message], context: Any = NO_CONTEXT) -> list[Message]:
    SEEN.append(context)
    return messages[:1]


class Hook:
    """A hook that is an object."""

    def __call__(self, messages: list[Message], info: RequestContext) -> list[Message]:
        return note(messages, info)


class Signless(Hook):
    """A hook whose parameters nobody can find out."""

    __signature__ = "none"

    def __call__(self, messages: list[Message], info: Any = NO_CONTEXT) -> list[Message]:
        return note([*messages], info)


async def later(messages: list[Message], context: RequestContext) -> list[Message]:
    return note([*messages], context)


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (lambda messages: note([*messages]), NO_CONTEXT),
        (lambda messages, context: note([*messages], context), CONTEXT),
        (lambda messages, anything: note([*messages], anything), CONTEXT),
        (lambda messages, context=None: note([*messages], context), CONTEXT),
        (lambda messages, /, context=None: note([*messages], context), CONTEXT),
        (lambda messages, strict=NO_CONTEXT: note([*messages], strict), NO_CONTEXT),
        (lambda messages, strict=NO_CONTEXT, context=NO_CONTEXT: note([*messages], strict), NO_CONTEXT),
        (lambda messages, *, context=NO_CONTEXT: note([*messages], context), NO_CONTEXT),
        (lambda messages, *context: note([*messages], *context), NO_CONTEXT),
        (lambda messages, **context: note([*messages], **context), NO_CONTEXT),
        (functools.partial(lambda first, messages, context: note([*messages], context), 1), CONTEXT),
        (Hook(), CONTEXT),
        (Signless(), NO_CONTEXT),
        (later, CONTEXT),
    ],
)
async def test_hook_gets_context_if_it_takes_one(hook: Any, told: Any) -> None:
    SEEN.clear()
    messages = [message("user", *said("one")), message("user", *said("two"))]
    assert await prepared(hook, messages, CONTEXT) == messages[:1]
    assert [told] == SEEN


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("returned", [None, [], ()])
async def test_hook_result_is_sent_and_none_changes_nothing(
    returned: Sequence[Message] | None, *, is_async: bool
) -> None:
    def at_once(_messages: list[Message]) -> Any:
        return returned

    async def in_time(_messages: list[Message]) -> Any:
        return returned

    messages = [message("user", *said("one"))]
    found = await prepared(in_time if is_async else at_once, messages, CONTEXT)
    assert found == (messages if returned is None else [])
    assert isinstance(found, list)


async def test_hook_works_on_deep_copies() -> None:
    def vandalise(messages: list[Message]) -> None:
        for one in messages:
            for asked in one.calls:
                asked.arguments["at"].append("lies")
        messages.clear()

    messages = [message("assistant", call("a"))]
    assert await prepared(vandalise, messages, CONTEXT) is messages
    assert messages == [message("assistant", call("a"))]


# What a reminder producer is told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{"role": "user"}], "dict"),
        ([None], "NoneType"),
        ("x", "str"),
        (5, "int"),
        (message("user"), "Message"),
        ({}, "dict"),
    ],
)
async def test_hook_must_return_messages(given: Any, told: str) -> None:
    right = rf"^prepare_messages has to return a list of Message, or None; it returned .*\b{told}\b"
    with pytest.raises(TypeError, match=right):
        await prepared(lambda _messages: given, [], CONTEXT)


@pytest.mark.parametrize(("given", "told"), [(5, "int"), (b"x", "bytes"), (["x", 5], "int"), ({"a": 1}, "dict")])
async def test_reminder_must_return_texts(given: Any, told: str) -> None:
    with pytest.raises(TypeError, match=rf"^a reminder has to return text, texts or None; it returned .*\b{told}\b"):
        await reminded([lambda _state: given], loop_state(stands(), [], []))


async def test_reminder_texts_are_flattened() -> None:
    given: list[Any] = ["a", ["b", "", None], ("c",), iter(["d"]), {"e"}, None, "", []]
    state = loop_state(stands(), [], [])
    assert await reminded([lambda _state, one=one: one for one in given], state) == ["a", "b", "c", "d", "e"]


def test_loop_state_holds_turn_figures() -> None:
    spent = Usage(input_tokens=7)
    facts = stands(
        turn=TurnFacts(number=1, steps=4, usage=spent),
        compaction=CompactionFacts(count=2, context_tokens=90, context_limit=100),
    )
    state = loop_state(facts, [message("user", *said("hi"))], [])
    assert state == LoopState(
        chat_id="c",
        step=4,
        call_count=0,
        last_call=None,
        last_calls=(),
        compactions=2,
        usage=spent,
        context_tokens=90,
        context_limit=100,
    )


def past(call_id: str, *, succeeded: bool = True) -> PastCall:
    arguments, output = {"at": [call_id]}, {"seen": [call_id]}
    return PastCall(f"look-{call_id}", succeeded=succeeded, call_id=call_id, arguments=arguments, output=output)


def test_loop_state_holds_last_five_answered_calls() -> None:
    turn = [
        message("user", *said("hi")),
        message("assistant", *said("so"), call("a"), call("b")),
        result("b", is_error=True),
        result("a"),
        message("assistant", call("c"), call("d"), call("open")),
        result("c"),
        result("d"),
        message("assistant", call("e"), call("f"), call("g")),
        *(result(name) for name in "gfe"),
    ]
    state = loop_state(stands(), turn[:4], [])
    assert (state.call_count, state.last_calls) == (2, (past("a"), past("b", succeeded=False)))
    assert state.last_call == past("b", succeeded=False)
    whole = loop_state(stands(), turn, [])
    assert (whole.call_count, whole.last_call) == (7, past("g"))
    assert [one.call_id for one in whole.last_calls] == ["c", "d", "e", "f", "g"]


@pytest.mark.parametrize(
    ("boundary", "position", "audience", "is_told"),
    [
        (0, 1, Audience.everyone, False),
        (0, 1, Audience.model, False),  # a summary of a chat elsewhere
        (5, 6, Audience.everyone, False),  # the context was cleared
        (5, 6, Audience.model, True),
        (5, 2, Audience.everyone, True),  # nothing but what was carried
    ],
)
def test_history_was_compacted_while_summary_is_visible(
    boundary: int, position: int, audience: Audience, *, is_told: bool
) -> None:
    facts = stands(compaction=CompactionFacts(count=3), history=HistoryFacts(length=7, boundary=boundary))
    first = replace(message("user", *said("hi")), position=position, audience=audience)
    told = history_was_compacted(loop_state(facts, [], [first, replace(first, position=7)]))
    assert [text for text in told if "3 time" in text] == list(told)
    assert bool(told) is is_told
    assert not history_was_compacted(loop_state(facts, [], []))
