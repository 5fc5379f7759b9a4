"""The prompt cache of Anthropic: each request finds what the one before it wrote, but no reminder is written there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.wire.dialects import Anthropic, Connect, Said
from tests.wire.requests import asked, message, result_of

from support.wire.server import Answer, Server
from turnwise.providers.protocol import ToolSpec
from turnwise.states.messages import Message, ToolCallPart

TOOL = ToolSpec("look", "Look.", {"type": "object", "properties": {}})
LOOKS_BACK = 20
"""Blocks before a mark in which Anthropic looks for what it has cached."""


def flat(body: dict[str, Any]) -> tuple[list[str], set[int]]:
    """Return the blocks of a request in the order of the cache, and after how many of them its marks stand."""
    blocks: list[str] = []
    marks: set[int] = set()
    for block in [
        *body.get("tools", ()),
        *body.get("system", ()),
        *({**block, "role": said["role"]} for said in body["messages"] for block in said["content"]),
    ]:
        mark = block.pop("cache_control", None)
        blocks.append(json.dumps(block, sort_keys=True))
        marks |= {len(blocks)} if mark else set()
    return blocks, marks | ({len(blocks)} if "cache_control" in body else set())


def conversation(calls: int) -> Iterator[list[Message]]:
    """Yield the history of each request: steps of so many parallel calls, and of text alone."""
    history = [message("user", "one")]
    yield [*history]
    for step in range(3):
        made = [ToolCallPart(call_id=f"c{step}-{n}", name="look", arguments={"n": n}) for n in range(calls)]
        history.append(message("assistant", "I look.", *made))
        history += [result_of(call.call_id, "look", f"saw {call.call_id}") for call in made]
        yield [*history]
    history += [message("assistant", "Done."), message("user", "two"), message("user", "and three")]
    yield [*history]


@pytest.mark.parametrize("settings", [{}, {"cache": "1h"}, {"cache": False}, {"anthropic_cache": True}], ids=str)
@pytest.mark.parametrize("reminded", [False, True])
@pytest.mark.parametrize("calls", [1, 12, 40])
async def test_each_request_finds_what_the_last_one_cached(
    calls: int, reminded: bool, settings: dict[str, Any], server: Server, connect: Connect
) -> None:
    server.script = [Answer(Anthropic().frames(Said()))]
    model = await connect(Anthropic(), settings=settings)
    reminder = [message("system", "<reminder>be quick</reminder>")] if reminded else []
    for history in conversation(calls):
        async for _ in model.stream(asked(*history, *reminder, tools=[TOOL], system="Be terse.")):
            pass
    sent = [flat(request.body) for request in server.asked]
    if settings.get("cache") is False:
        assert not any(marks for _, marks in sent)
        return
    for (before, written), (blocks, marks) in itertools.pairwise(sent):
        cached = max(written)
        assert len(marks) <= 4
        if not (reminded and settings.get("anthropic_cache")):  # whoever wants the last block marked has it marked
            assert blocks[:cached] == before[:cached]
            assert any(mark - LOOKS_BACK <= cached <= mark for mark in marks)
