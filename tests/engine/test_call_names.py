"""Names of calls: every id that a provider gives becomes one that the chat has never had."""

from __future__ import annotations

from hashlib import sha256
from itertools import product
from typing import Any

import pytest

from turnwise.engine.jobs.call_names import CallNames
from turnwise.providers.protocol import ModelPart, ModelReply
from turnwise.providers.reply_builder import join
from turnwise.states.errors import ModelError

TAKEN = {"a", "b", "b-4", "call"}
SHORTENED = f"{'x' * 64}-{sha256(b'x' * 513).hexdigest()[:24]}"


async def named(*given: str | None, step: int = 4) -> list[str | None]:
    async def is_taken(call_id: str) -> bool:
        return call_id in TAKEN

    names = CallNames(is_taken, step)
    return [(await names.renamed(ModelPart("tool_call", id=one, name="look", arguments={}))).id for one in given]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a"], ["a-4"]),
        (["", None, ""], ["call-4", "call-4-2", "call-4-3"]),
        (["new", "new", "new"], ["new", "new-4", "new-4-2"]),
        (["a", "a"], ["a-4", "a-4-2"]),
        (["a\0b", "a\0b"], ["a\ufffdb", "a\ufffdb-4"]),
        (["b", "b", "b"], ["b-4-2", "b-4-3", "b-4-4"]),
        (["é" * 256], ["é" * 256]),
        (["x" * 513, "x" * 513], [SHORTENED, f"{SHORTENED}-4"]),
    ],
)
async def test_taken_id_gets_the_step_and_then_a_number(given: list[str | None], expected: list[str]) -> None:
    assert await named(*given) == expected
    assert await named(*given) == expected, "the same reply in the same step gets the same names"


@pytest.mark.parametrize("missing", ["", None])
async def test_call_without_an_id_keeps_one_name(missing: str | None) -> None:
    async def is_taken(_call_id: str) -> bool:
        return False

    names = CallNames(is_taken, 4)
    found: list[str | None] = []
    for _ in range(2):
        parts = [
            ModelPart("tool_call_start", id="b", name="look"),
            ModelPart("tool_call_start", id=missing, name="look"),
            ModelPart("tool_call_delta", id=missing, arguments="{"),
            ModelPart("tool_call_delta", id="b", arguments="{}"),
            ModelPart("tool_call", id=missing, name="look", arguments={}, executor="provider"),
            ModelPart("tool_call", id="b", name="look", arguments={}),
        ]
        found += [(await names.renamed(part)).id for part in parts]
        found.append((await names.renamed(ModelPart("provider_result", call_id=missing, output=1))).call_id)
    pieces = ["b", "call", "call", "b", "call", "b", "call"]
    assert found == [*pieces, *(f"{name}-4" for name in pieces)]


PIECES = [
    ModelPart("tool_call_start", id="a", name="look"),
    ModelPart("tool_call_start", id="b", name="see"),
    ModelPart("tool_call_delta", id="a", arguments='{"at": 1}'),
    ModelPart("tool_call_delta", id="b", arguments='{"at": 2}'),
    ModelPart("tool_call_delta", arguments='{"at": 3}'),
    ModelPart("tool_call", id="a", name="look", arguments={"at": 4}),
    ModelPart("tool_call", id="b", name="see", arguments={"at": 5}),
]


@pytest.mark.parametrize("count", [1, 2, 3, pytest.param(4, marks=pytest.mark.deep)])
async def test_renaming_never_changes_the_calls_of_a_reply(count: int) -> None:
    """A fragment that comes late, or without an id, begins no other call: that would run, too."""

    async def is_taken(_: str) -> bool:
        return False

    for pieces in product(PIECES, repeat=count):
        names = CallNames(is_taken, 4)
        parts = [*pieces, ModelPart("finish")]
        renamed = [await names.renamed(part) for part in parts]
        assert as_said(join(renamed)) == as_said(join(parts)), pieces


def as_said(reply: ModelReply) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in reply.calls]


@pytest.mark.parametrize("wrong", [{"id": 5}, {"id": ["x"]}, {"call_id": {"a": 1}}], ids=str)
async def test_id_that_is_not_text_is_a_retryable_error(wrong: dict[str, Any]) -> None:
    async def is_taken(_: str) -> bool:
        return False

    with pytest.raises(ModelError, match="the id of a call has to be text") as failed:
        await CallNames(is_taken, 1).renamed(ModelPart("tool_call", name="look", **wrong))
    assert failed.value.retryable


async def test_long_ids_with_one_prefix_stay_unique() -> None:
    one, other = await named("é" * 5000, "x" + "é" * 5000)
    assert one.startswith("é" * 32 + "-")
    assert other.startswith("x" + "é" * 31 + "-")
    first, second = await named("x" * 4000 + "1", "x" * 4000 + "2")
    assert first != second
