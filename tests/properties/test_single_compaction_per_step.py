"""A step commits at most one compaction; a repeated request for one has no effect.

Requests for another: a prompt estimated as too long, one refused again after a compaction, a reply over the threshold
after that, the same summary submitted twice, and a second summary after a lost worker. Seen red: a compaction that does
not note its step; a refused prompt that has room made whatever was compacted before; a threshold that asks for a
compaction in a step that was compacted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random

import pytest

from support.exploring import seeds_until
from support.life import OVERFLOW, USAGE, summary_of
from support.lives import PLACES, SLOW_STORES, Walk, lives_in, named
from turnwise import ChatState, ClientTool, CompactionPolicy, Engine, ModelRequest, Settings, ToolResult, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states import triggers as t
from turnwise.states.errors import IllegalTransition, StaleLease, TurnwiseError
from turnwise.states.model_errors import ModelError
from turnwise.states.names import Stage
from turnwise.states.writes import InsertBoundary

pytestmark = pytest.mark.hypothesis
S = ChatState
WAYS = (
    "prompt refused again",
    "threshold crossed again",
    "summary handed in twice",
    "summary made anew",
    "prompt will not fit",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_step_is_compacted_once(place: str, request: pytest.FixtureRequest) -> None:
    tools = ("local", "client", "subagent")
    met = lives_in(place, request).each(live, table=250, sqlite=25, postgres=8, tools=tools, max_steps=None)
    least = {"table": 50, "sqlite": 5, "postgres": 1}[place]
    assert {way: met[way] for way in WAYS if met[way] < least} == {}


def live(walk: Walk) -> None:
    walk.chance_of_overflow, walk.chance_of_calls, walk.window = 0.4, 0.4, 20
    for _ in range(30):
        if walk.chance(0.1):
            walk.meddle()
        elif not ask_again(walk):
            walk.go_on()
        check(walk)


def ask_again(walk: Walk) -> bool:
    """Request a second compaction of a step, where possible; return whether it was."""
    facts, life, step = walk.facts, walk.life, walk.facts.step
    compacted = step.number in boundaries(walk)
    if facts.state is S.streaming and step.attempt_open and compacted:
        if walk.chance(0.5):
            with pytest.raises(IllegalTransition):
                life.overflow()
            walk.met["prompt refused again"] += 1
            life.held(t.Failed, error=OVERFLOW)
        else:
            life.reply(*walk.planned(), tokens=90, usage=USAGE)
            walk.met["threshold crossed again"] += 1
            assert walk.facts.state is not S.compacting or walk.facts.step.number != step.number
        return True
    if facts.state is S.compacting and step.attempt_open and walk.chance(0.6):
        token, carried = facts.lease.token if facts.lease else None, walk.carried()
        if walk.chance(0.3):
            life.held(walk.random.choice([t.Released, t.LeaseExpired]))
            walk.met["summary made anew"] += 1
        else:
            life.compact(*carried)
        with pytest.raises((IllegalTransition, StaleLease)):
            life.fire(t.Compacted, token=token, summary=summary_of("once more", *carried), usage=USAGE)
        walk.met["summary handed in twice"] += 1
        return True
    return False


def boundaries(walk: Walk) -> Counter[int]:
    """Return the number of committed compactions, by step."""
    writes = [write for decision in walk.life.decisions for write in decision.writes]
    return Counter(write.step for write in writes if isinstance(write, InsertBoundary) and write.reason == "compaction")


def check(walk: Walk) -> None:
    counts = boundaries(walk)
    assert max(counts.values(), default=1) == 1
    assert counts.total() == walk.facts.compaction.count
    assert walk.facts.step.stage is not Stage.refused or walk.facts.state is not S.streaming
    last = walk.life.decisions[-1]
    is_estimated = last.target is S.compacting and last.facts.compaction.estimated
    walk.met["prompt will not fit"] += is_estimated and last.trigger in (t.Claimed, t.ToolsFinished)


# The engine, with a model that refuses prompts and crosses the threshold


class DrawnModel(ScriptedModel):
    """Refuses prompts, crosses the threshold and calls tools at random; summaries may fail, too."""

    def __init__(self, random: Random) -> None:
        super().__init__(self.reply, summary=self.summary, context_limit=100)
        self.random = random
        self.calls = 0

    def reply(self, _: ModelRequest) -> Reply:
        if self.random.random() < 0.35:
            return Reply(error=ModelError("context_overflow"))
        names = self.random.choice([[], [], ["look"], ["ask_user"], ["look", "ask_user"]])
        calls = [Call(name, {}, id=f"c{self.calls + number}") for number, name in enumerate(names)]
        self.calls += len(calls)
        return Reply("words", calls=calls, usage=(self.random.choice([10, 90, 90]), 1))

    def summary(self, _: ModelRequest) -> Reply:
        chance = self.random.random()
        return Reply(error=ModelError("bad_request")) if chance < 0.1 else Reply("" if chance < 0.2 else "in short")


@tool
async def look() -> str:
    """Look around."""
    return "seen"


ASK_USER = ClientTool("ask_user", "Ask the user.", {"type": "object"})


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_an_engine_takes_one_summary_a_step(place: str, request: pytest.FixtureRequest) -> None:
    url, met = lives_in(place, request).url, Counter[str]()
    rare = {"sqlite": 25, "postgres": 5}[place]
    least = {"prompt refused": 2 * rare, "prompt refused after room was made": rare}
    for seed in seeds_until(met, least, lives={"sqlite": 25, "postgres": 6}[place]):
        with named(seed):
            await live_in_engine(url, Random(seed), met)  # noqa: S311 - no secret


async def live_in_engine(url: str, random: Random, met: Counter[str]) -> None:
    model = DrawnModel(random)
    after = random.choice(["continue", "rest"])
    settings = Settings(
        coalesce=0,
        poll_interval=1000,
        lease=3000,
        renew_every=1000,
        durability="normal",
        compaction=CompactionPolicy(after_final_step=after),
    )  # type: ignore[arg-type]
    async with Engine(url, model=model, tools=[look], settings=settings) as engine:
        chat_id = (await engine.create_chat(client_tools=[ASK_USER])).id
        for number in range(8):
            chat = await engine.get_chat(chat_id)
            with contextlib.suppress(TurnwiseError):
                if chat.open_calls:
                    await engine.submit_tool_results(
                        chat_id, [ToolResult(call.call_id, "yes") for call in chat.open_calls]
                    )
                elif chat.state == "error" and random.random() < 0.5:
                    await engine.resume(chat_id)
                elif number and random.random() < 0.2:
                    await engine.request_compaction(chat_id)
                else:
                    await engine.send_message(chat_id, f"text {number}")
            await engine.wait(chat_id)
        check_requests(
            model, [compaction.step for compaction in await engine.compactions(chat_id) if compaction.summary], met
        )
        assert (await engine.verify(chat_id)).ok


def check_requests(model: DrawnModel, compacted: list[int], met: Counter[str]) -> None:
    assert max(Counter(compacted).values(), default=1) == 1
    for step in {request.step for request in model.requests}:
        purposes = [request.purpose for request in model.requests if request.step == step]
        assert purposes.count("step") <= 2, "a step is asked again only once it has room"
        refused = purposes[:2] == ["step", "summary"]
        met["prompt refused"] += refused
        met["prompt refused after room was made"] += refused and purposes.count("step") == 2
