"""The parts of a reply under way: what belongs to one part, which result answers which call, what is shown once."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise import ModelPart
from turnwise.providers.part_builders import CallBuilder, WholeBuilder, WordsBuilder
from turnwise.states.messages import ReasoningPart, SourcePart, TextPart, ToolResultPart
from turnwise.states.names import CallStatus, Executor


def call(**fields: Any) -> CallBuilder:
    return CallBuilder(**({"index": 0, "given_id": "c1", "call_id": "c1", "name": "look"} | fields))


@pytest.mark.parametrize(
    ("signed", "named", "text", "signature", "name", "ends"),
    [
        (None, None, "more", None, None, False),
        (None, None, "more", "s", "r1", False),
        ("s", None, "more", None, None, True),
        ("s", None, "more", "s", None, False),
        ("s", None, "", "t", None, True),
        ("s", None, "", None, None, False),
        (None, "r1", "more", None, None, False),
        (None, "r1", "more", None, "r1", False),
        (None, "r1", "more", None, "r2", True),
        (None, "r1", "", None, "r2", False),
        (None, "r1", "", "s", "r2", True),
    ],
)
def test_a_signature_ends_what_it_signs_and_another_name_is_another_part(
    signed: str | None, named: str | None, text: str, signature: str | None, name: str | None, *, ends: bool
) -> None:
    words = WordsBuilder(0, "reasoning", signature=signed, metadata={"id": named} if named else None)
    assert words.ended_before(text, signature, {"id": name} if name else None) is ends


@pytest.mark.parametrize(
    ("opened", "complete", "same"),
    [
        ({"given_id": None}, "look", True),
        ({"given_id": None, "name": ""}, "look", True),
        ({"given_id": None}, "find", False),
        ({"given_id": "c1"}, "look", False),
        ({"given_id": None, "arguments": {}}, "look", False),
    ],
)
def test_a_complete_call_without_an_id_is_the_one_that_was_opened_without(
    opened: dict[str, Any], complete: str, *, same: bool
) -> None:
    assert call(**opened).is_opened_for(ModelPart("tool_call", name=complete, arguments={})) is same


@pytest.mark.parametrize(
    ("known", "result_of", "answers"),
    [
        ({}, "c1", True),
        ({}, "c2", False),
        ({"given_id": None}, "", True),
        ({"given_id": None}, "c1", False),
        ({"answered": True}, "c1", False),
        ({"arguments": {}}, "c1", False),
        ({"arguments": {}, "executor": Executor.provider}, "c1", True),
        ({"arguments": {}, "executor": Executor.client}, "c1", False),
        ({"arguments": {}, "executor": Executor.provider, "answered": True}, "c1", False),
    ],
)
def test_a_providers_result_answers_the_first_call_of_that_id_that_is_its_own(
    known: dict[str, Any], result_of: str, *, answers: bool
) -> None:
    assert call(**known).is_answered_by(ModelPart("tool_result", call_id=result_of, output="x")) is answers


def test_words_are_shown_once_and_kept_whole() -> None:
    words = WordsBuilder(0, "text", pieces=["Hel", "lo"], metadata={"id": "t1"})
    assert [delta.delta for delta in words.take()] == ["Hello"]
    words.pieces.append("!")
    assert [(delta.type, delta.delta) for delta in words.take()] == [("text", "!")]
    assert words.part() == TextPart(text="Hello!", metadata={"id": "t1"})
    thought = WordsBuilder(0, "reasoning", pieces=["Hm"], signature="s", metadata={"id": "r1"})
    assert thought.part() == ReasoningPart(text="Hm", signature="s", metadata={"id": "r1"})


def test_a_call_is_shown_by_its_fragments_and_then_whole() -> None:
    opened = call(executor=Executor.provider, metadata={"id": "secret"})
    assert [(delta.call_id, delta.name, delta.executor, delta.delta, delta.complete) for delta in opened.take()] == [
        ("c1", "look", Executor.provider, "", None)
    ]
    assert opened.part() is None
    opened.pieces.extend(['{"a":', " 1}"])
    assert [delta.delta for delta in opened.take()] == ['{"a": 1}']
    opened.pieces.append("\n")
    opened.arguments = {"a": 1}
    fragments, complete = opened.take()
    assert (fragments.delta, complete.delta) == ("\n", None)
    assert complete.complete is not None
    assert (complete.complete["arguments"], complete.complete["executor"]) == ({"a": 1}, "provider")
    assert "metadata" not in complete.complete
    (again,) = opened.take()
    assert again.complete == complete.complete
    part = opened.part()
    assert part is not None
    assert (part.call_id, part.name, part.executor, part.metadata) == ("c1", "look", "provider", {"id": "secret"})


def test_what_comes_in_one_piece_is_shown_in_one() -> None:
    source = SourcePart(url="https://example.com", title="An example", metadata={"id": "secret"})
    (shown,) = WholeBuilder(3, source).take()
    assert (shown.type, shown.delta, shown.call_id) == ("source", None, None)
    assert shown.complete is not None
    assert (shown.complete["url"], "metadata" in shown.complete) == ("https://example.com", False)


def test_what_is_shown_is_plain_json() -> None:
    """It is stored, and sent to readers in other languages."""
    opened = call(arguments={"a": 1}, executor=Executor.client)
    result = ToolResultPart(call_id="c1", name="look", output="x", outcome=CallStatus.failed)
    (shown,) = opened.take()
    (answered,) = WholeBuilder(0, result).take()
    for delta in (shown, answered):
        assert delta.complete is not None
        assert {type(value) for value in delta.complete.values()} <= {str, int, bool, dict, list, type(None)}
