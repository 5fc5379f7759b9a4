"""Names of calls: every id that a provider gives becomes one that the chat has never had."""

from __future__ import annotations

import pytest

from turnwise.engine.jobs.call_names import CallNames
from turnwise.providers.protocol import ModelPart

TAKEN = {"a", "b", "b-4", "call"}


async def named(*given: str | None, step: int = 4) -> list[str | None]:
    async def is_taken(call_id: str) -> bool:
        return call_id in TAKEN

    names = CallNames(is_taken, step)
    return [(await names.renamed(ModelPart("tool_call", id=one, name="look", arguments={}))).id for one in given]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["new"], ["new"]),
        (["a"], ["a-4"]),
        (["b"], ["b-4-2"]),
        ([None], ["call-4"]),
        ([""], ["call-4"]),
        (["new", "new", "new"], ["new", "new-4", "new-4-2"]),
        (["a", "a"], ["a-4", "a-4-2"]),
        (["b", "b", "b"], ["b-4-2", "b-4-3", "b-4-4"]),
    ],
)
async def test_a_name_that_was_given_gets_the_step_behind_it_and_then_a_number(
    given: list[str | None], expected: list[str]
) -> None:
    assert await named(*given) == expected
    assert await named(*given) == expected, "the same reply in the same step gets the same names"


async def test_the_pieces_of_a_call_get_the_name_of_its_beginning() -> None:
    async def is_taken(call_id: str) -> bool:
        return call_id in TAKEN

    names = CallNames(is_taken, 4)
    parts = [
        ModelPart("tool_call_start", id="a", name="look"),
        ModelPart("tool_call_delta", id="a", arguments="{}"),
        ModelPart("tool_call", id="a", name="look", arguments={}),
        ModelPart("provider_result", call_id="a", output=1),
    ]
    found = [await names.renamed(part) for part in parts]
    assert [part.id for part in found[:3]] == ["a-4"] * 3
    assert found[3].call_id == "a-4"
    text = ModelPart("text_delta", text="so")
    assert await names.renamed(text) is text
