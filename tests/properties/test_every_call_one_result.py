"""Every call has exactly one result before the next model request, and every result has its call.

Also after an interrupt, a timeout, a crash, an error, an edit and a compaction, for all kinds of calls. Seen red: an
interrupt that leaves the calls open which had started; a deadline that closes calls without a result; a denied call
that is closed without one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.lives import PLACES, Walk, lives_in
from turnwise import ChatState
from turnwise.states.messages import Message
from turnwise.states.names import Tail

pytestmark = pytest.mark.hypothesis
SITUATIONS = ("interrupted with open calls", "timed out", "lost with started calls", "failed with open calls")


@pytest.mark.parametrize("place", PLACES)
def test_every_call_has_one_result(place: str, request: pytest.FixtureRequest) -> None:
    lives = lives_in(place, request)
    met = lives.each(live, table=250, sqlite=16, postgres=5)
    if place == "table":
        assert {name: met[name] for name in (*SITUATIONS, "model asked after calls") if met[name] < 50} == {}
    else:
        assert sum(met[name] for name in SITUATIONS) >= {"sqlite": 20, "postgres": 5}[place]


def live(walk: Walk) -> None:
    walk.live(40, check=lambda: check(walk))


def check(walk: Walk) -> None:
    facts, messages, prompt = walk.facts, walk.life.messages, walk.life.prompt
    still_open = [call.call_id for call in facts.open_calls]
    for seen in (messages, prompt):
        assert sorted(calls_in(seen)) == sorted([*results_in(seen), *still_open])
        assert max(Counter(results_in(seen)).values(), default=1) == 1
    if facts.state is ChatState.streaming:
        assert still_open == []
        assert facts.history.tail in (Tail.awaits_answer, Tail.partial)
        walk.met["model asked after calls"] += bool(calls_in(prompt))


def calls_in(messages: list[Message]) -> list[Any]:
    return [call.call_id for message in messages for call in message.calls]


def results_in(messages: list[Message]) -> list[Any]:
    return [message.result.call_id for message in messages if message.result]
