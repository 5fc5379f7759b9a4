"""Several models behind one: when the next is asked, and when a failure ends the call."""

from collections.abc import Sequence
from typing import Any

import pytest

from turnwise.providers.protocol import Model, ModelPart, ModelRequest
from turnwise.providers.pydantic_ai.streams import reply_of_first, stream_of_first
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.model_errors import ModelError

REQUEST = ModelRequest(purpose="step", chat_id="c", messages=[])
BUSY, WRONG = ModelError("overloaded", message="busy"), ModelError("bad_request", message="wrong")
HEARTBEAT, WORD = ModelPart(type="heartbeat"), ModelPart(type="text_delta", text="half")


def failing(error: ModelError, *before: ModelPart) -> Reply:
    return Reply(parts=before, error=error, error_after=len(before))


async def text_of(models: Sequence[Model]) -> str:
    return "".join([part.text async for part in stream_of_first(models, REQUEST) if part.type == "text_delta"])


@pytest.mark.parametrize(
    ("first", "second", "said", "asked"),
    [
        (Reply("one"), Reply("two"), "one", [1, 0]),
        (failing(BUSY), Reply("two"), "two", [1, 1]),
        (failing(BUSY, HEARTBEAT), Reply("two"), "two", [1, 1]),
        (failing(BUSY), failing(BUSY), BUSY, [1, 1]),
        (failing(WRONG), Reply("two"), WRONG, [1, 0]),
        (failing(BUSY, WORD, HEARTBEAT), Reply("two"), BUSY, [1, 0]),
    ],
)
async def test_next_model_is_asked_until_one_speaks(first: Reply, second: Reply, said: Any, asked: list[int]) -> None:
    models = [ScriptedModel(first), ScriptedModel(second)]
    if isinstance(said, ModelError):
        with pytest.raises(ModelError, match=said.message):
            await text_of(models)
    else:
        assert await text_of(models) == said
    assert [len(model.requests) for model in models] == asked


@pytest.mark.parametrize(
    ("first", "second", "said", "asked"),
    [
        (Reply("one"), Reply("two"), "one", [1, 0]),
        (failing(BUSY, WORD), Reply("two"), "two", [1, 1]),
        (failing(BUSY), failing(BUSY), BUSY, [1, 1]),
        (failing(WRONG), Reply("two"), WRONG, [1, 0]),
    ],
)
async def test_whole_reply_is_of_the_first_that_gives_one(
    first: Reply, second: Reply, said: Any, asked: list[int]
) -> None:
    models = [ScriptedModel(first), ScriptedModel(second)]
    if isinstance(said, ModelError):
        with pytest.raises(ModelError, match=said.message):
            await reply_of_first(models, REQUEST)
    else:
        assert (await reply_of_first(models, REQUEST)).text == said
    assert [len(model.requests) for model in models] == asked
