"""Folding: calls stay with their results and carried messages stay, for any result of a strategy."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.life import NOW, text_parts
from turnwise import InvalidContent, ModelError
from turnwise.engine.jobs.fold_history import summary_of
from turnwise.states.messages import Message, ToolCallPart, ToolResultPart


def text(position: int, words: str = "", role: Any = "user", **fields: Any) -> Message:
    parts = text_parts(words or f"words {position}")
    known = {"id": f"m{position}", "turn": position, "step": position, "created_at": NOW}
    return Message(**known | {"role": role, "parts": parts, "position": position} | fields)


def call(position: int, call_id: str) -> Message:
    part = ToolCallPart(call_id=call_id, name="look", arguments={})
    return text(position, role="assistant", parts=(part,))


def result(position: int, call_id: str, output: str = "seen") -> Message:
    part = ToolResultPart(call_id=call_id, name="look", output=output)
    return text(position, role="tool", parts=(part,), call_index=1)


HISTORY = (text(1), call(3, "a"), result(4, "a"), text(6, role="assistant"), text(7), call(8, "b"), result(9, "b"))
BY_POSITION = {message.position: message for message in HISTORY}


def new(words: str = "In short.", **fields: Any) -> Message:
    return text(fields.pop("position", 0), words, **fields)


def changed(position: int, words: str) -> Message:
    return replace(BY_POSITION[position], parts=text_parts(words))


def folded(output: list[Message], *carried: int) -> tuple[list[int | str], int]:
    """Return the remaining messages (positions of carried ones, else texts) and the number of folded ones."""
    summary = summary_of(HISTORY, output, set(carried))
    return [one if isinstance(one, int) else one.text or one.role for one in summary.messages], summary.folded


def at(*positions: int) -> list[Message]:
    return [BY_POSITION[position] for position in positions]


@pytest.mark.parametrize(
    ("output", "carried", "left"),
    [
        ([new()], (), (["In short."], 7)),
        ([new()], (7,), (["In short.", 7], 6)),
        ([*at(6), new(), *at(1)], (), ([6, "In short.", 1], 5)),
        ([*at(6), new()], (1, 7), ([1, 6, "In short.", 7], 4)),
        ([*at(7), new()], (1,), ([1, 7, "In short."], 5)),
        ([new("words 7")], (7,), ([7], 6)),
        ([new("words 7", role="assistant")], (7,), (["words 7", 7], 6)),
        (at(4), (), ([3, 4], 5)),
        ([*at(9, 7)], (), ([8, 9, 7], 4)),
        ([changed(7, "shorter"), *at(1)], (), (["shorter", 1], 6)),
        ([changed(3, "I looked."), changed(4, "It was there.")], (), (["I looked.", "It was there."], 7)),
        ([changed(3, "I looked."), *at(4)], (), ([3, 4], 5)),
        ([*at(3), changed(4, "It was there.")], (), ([3, 4], 5)),
        ([new("  "), *at(7)], (), ([7], 6)),
        ([*at(1, 3, 4, 6, 7, 8, 9), new()], (), ([1, 3, 4, 6, 7, 8, 9, "In short."], 0)),
        ([], (1,), ([1], 6)),
    ],
)
def test_fold_keeps_given_messages_and_their_calls(
    output: list[Message], carried: tuple[int, ...], left: tuple[list[int | str], int]
) -> None:
    assert folded(output, *carried) == left


@pytest.mark.parametrize(
    ("output", "words"),
    [([], "nothing to go on from"), ([new(" ")], "nothing to go on from"), (list(HISTORY), "nothing was folded")],
)
def test_fold_of_nothing_or_everything_fails(output: list[Message], words: str) -> None:
    with pytest.raises(ModelError, match=re.escape(words)) as refused:
        summary_of(HISTORY, output, set())
    assert refused.value.kind == ("nothing_folded" if output == list(HISTORY) else "bad_request")
    assert summary_of(HISTORY, [*HISTORY[1:], HISTORY[0]], set()).folded == 0


def test_new_message_is_normalised_or_refused() -> None:
    """A strategy that uses `replace` bypasses the checks of messages."""

    def message_with(metadata: Any) -> Message:
        return replace(new(), parts=(replace(text_parts("x")[0], metadata=metadata),))

    (summary,) = summary_of(HISTORY, [message_with({1: "one"})], set()).messages
    assert summary.parts[0].metadata == {"1": "one"}
    deep: dict[str, Any] = {}
    deep["deep"] = deep
    nested = {"x": json.loads("[" * 111 + "]" * 111)}
    wrong = {"JSON": {"x": {(1,): 2}}, "only JSON": deep, "nested deeper": nested, r"parts\[0\].metadata": "x"}
    for words, metadata in wrong.items():
        with pytest.raises(InvalidContent, match=words):
            summary_of(HISTORY, [message_with(metadata)], set())


def test_changed_message_keeps_its_position() -> None:
    other = replace(changed(7, "shorter"), turn=99, step=99, call_index=5, partial=True)
    summary = summary_of(HISTORY, [new("x", position=99, partial=True), other], set())
    (fresh, stands) = summary.messages
    assert (fresh.position, fresh.partial) == (0, False)
    assert (stands.position, stands.turn, stands.step, stands.call_index) == (7, 7, 7, BY_POSITION[7].call_index)
    assert stands.text == "shorter"


@given(
    given=st.lists(st.sampled_from([*HISTORY, new(), changed(3, "x"), changed(9, "y"), changed(6, "z")]), max_size=9),
    carried=st.sets(st.sampled_from([1, 6, 7])),
)
def test_fold_never_separates_calls_from_results(given: list[Message], carried: set[int]) -> None:
    try:
        summary = summary_of(HISTORY, given, carried)
    except ModelError:
        return
    left = [BY_POSITION[one] if isinstance(one, int) else one for one in summary.messages]
    assert {message.position for message in left} >= carried
    calls = [call.call_id for message in left for call in message.calls]
    results = [message.result.call_id for message in left if message.result is not None]
    assert sorted(calls) == sorted(results)
    places = [message.position for message in left if message.position]
    assert len(set(places)) == len(places)
    assert summary.folded == len(HISTORY) - sum(isinstance(one, int) for one in summary.messages)
