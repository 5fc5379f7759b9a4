"""A steering message enters the next request of the running turn, or starts the next turn; once, in order.

Never between a call and its result, for interrupts, retries, crashes, compactions and edits of the queue. An attempt at
a step has one history from its start to its end. Seen red: `take_steering` that takes the first one only; one that
leaves what it took in the queue; a row between two steps without it; `enqueue` that puts the message at the end of the
queue.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.life import own_of
from support.lives import PLACES, Walk, lives_in
from turnwise import ChatState
from turnwise.states import triggers as t
from turnwise.states.decide import Decision
from turnwise.states.table import BUSY
from turnwise.states.writes import DropQueued, InsertMessage, PutQueued

pytestmark = pytest.mark.hypothesis
S = ChatState
SITUATIONS = (
    "several entered one request",
    "entered behind results",
    "entered behind a compaction",
    "entered a retry",
    "began the next turn",
    "waited through an interrupt",
    "edited",
    "withdrawn",
)


@pytest.mark.parametrize("place", PLACES)
def test_steering_enters_the_next_request_once(place: str, request: pytest.FixtureRequest) -> None:
    lives = lives_in(place, request)
    met = lives.each(live, kind=Steered, table=600, sqlite=16, postgres=5)
    if place == "table":
        assert {name: met[name] for name in SITUATIONS if met[name] < 50} == {}
    else:
        assert sum(met[name] for name in SITUATIONS) >= {"sqlite": 20, "postgres": 5}[place]


def live(walk: Steered) -> None:
    walk.live(40, meddling=0.3, check=walk.check)


class Steered(Walk):
    """Steers often, and remembers the steering messages."""

    def __init__(self, *args: Any) -> None:
        self.sent: set[str] = set()
        """Steering messages that were neither withdrawn nor cut."""
        self.moved: set[str] = set()
        """Those that were promoted to the next turn."""
        self.seen = 0
        """The number of checked decisions."""
        super().__init__(*args)

    def send(self) -> None:
        self.say(self.random.choice(["steer", "steer", "queue"]))

    def meddle(self) -> None:
        waiting = [queued for queued in self.facts.queue if queued.steers]
        if self.facts.state in BUSY and self.may_send() and self.chance(0.6):
            self.send()
            return
        if not waiting or self.chance(0.8):
            super().meddle()
            return
        chosen = self.random.choice(waiting)
        trigger = self.random.choice([t.EditQueued, t.DeleteQueued, t.PromoteQueued])
        self.life.fire(trigger, **own_of(trigger, {"queued_id": chosen.id, "parts": chosen.parts}))
        if trigger is t.DeleteQueued:
            self.sent.discard(chosen.id)
        elif trigger is t.PromoteQueued:
            self.moved.add(chosen.id)
        self.met["edited"] += trigger is t.EditQueued
        self.met["withdrawn"] += trigger is t.DeleteQueued

    def edit(self) -> None:
        super().edit()
        self.sent &= {message.id for message in self.life.messages}

    def check(self) -> None:
        decisions, self.seen = self.life.decisions[self.seen :], len(self.life.decisions)
        for decision in decisions:
            self.look_at(decision)
        self.each_is_there_once_and_in_order()
        self.none_stands_between_a_call_and_its_result()
        self.those_that_steer_come_first()

    def look_at(self, decision: Decision) -> None:
        writes, facts = decision.writes, decision.facts
        self.sent |= {write.queued.id for write in writes if isinstance(write, PutQueued) and write.queued.steers}
        waiting = [queued.id for queued in facts.queue if queued.steers]
        entered = [write.id for write in writes if isinstance(write, DropQueued) and write.why == "steered"]
        if decision.begins_attempt and decision.target is S.streaming:
            assert waiting == [], "the model is asked without it"
        if entered:
            assert decision.target is S.streaming
            assert [facts.turn.number] == [*{m.turn for m in inserted(decision) if m.id in entered}]
        self.met["several entered one request"] += len(entered) > 1
        self.met["entered behind results"] += bool(entered) and decision.trigger is t.ToolsFinished
        self.met["entered behind a compaction"] += bool(entered) and decision.trigger is t.Compacted
        self.met["entered a retry"] += bool(entered) and decision.trigger is t.AttemptStarted
        taken = {write.id for write in writes if isinstance(write, DropQueued) and write.why == "taken"}
        self.met["began the next turn"] += bool(taken & self.sent) and decision.trigger is t.StepFinished
        self.met["waited through an interrupt"] += bool(waiting) and decision.trigger is t.Settled
        self.an_attempt_has_one_history(decision)

    def an_attempt_has_one_history(self, decision: Decision) -> None:
        before = next((one for one in self.life.decisions if one.facts.version == decision.facts.version - 1), None)
        if before is None or decision.begins_attempt:
            return
        asked, still = before.facts, decision.facts
        same = (asked.step.number, asked.step.attempt) == (still.step.number, still.step.attempt)
        if same and {asked.state, still.state} == {S.streaming} and asked.step.attempt_open and still.step.attempt_open:
            assert asked.history_version == still.history_version

    def each_is_there_once_and_in_order(self) -> None:
        ids = [message.id for message in self.life.messages if message.id in self.sent]
        there = ids + [queued.id for queued in self.facts.queue if queued.id in self.sent]
        assert sorted(there) == sorted(self.sent)
        arrived = [int(name[1:]) for name in there if name not in self.moved]
        assert arrived == sorted(arrived)

    def none_stands_between_a_call_and_its_result(self) -> None:
        for history in (self.life.messages, self.life.prompt):
            unanswered = set[str]()
            for message in history:
                unanswered |= {call.call_id for call in message.calls}
                unanswered -= {message.result.call_id} if message.result else set()
                assert message.id not in self.sent or not unanswered

    def those_that_steer_come_first(self) -> None:
        kinds = [queued.steers for queued in self.facts.queue if queued.id not in self.facts.ahead]
        assert kinds == sorted(kinds, reverse=True)


def inserted(decision: Decision) -> list[Any]:
    return [write.message for write in decision.writes if isinstance(write, InsertMessage)]
