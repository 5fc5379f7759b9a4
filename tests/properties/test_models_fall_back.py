"""Each of an agent's models stands in for the earlier ones, and a reader sees one reply.

No reader sees two replies of one step: a failed model's parts are discarded first. Private data of a provider goes to
no other, and back to that one. The models are asked in their order: the next one at once after a declared failure, the
first again after the last one, and in the next turn. A message names the earlier models and their errors. A worker that
takes over continues with the next model. Seen red: an action that forgets to take back what the model has shown; a
history that is sent as it is stored; a turn that begins with the model of the last one; a model that is tried again
before the others were asked.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import pytest

from support.exploring import seeds
from support.lives import named
from turnwise import (
    ChatStore,
    Engine,
    Event,
    ModelError,
    ModelFailure,
    ModelPart,
    ModelRequest,
    RetryPolicy,
    Settings,
    tool,
)
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.events import AttemptDiscardedEvent, MessageEvent, PartEvent
from turnwise.states.messages import ReasoningPart
from turnwise.states.model_errors import FALLBACK_KINDS
from turnwise.testing import ManualClock, crash_everywhere

pytestmark = pytest.mark.hypothesis
PROVIDERS = ("first", "second", "third")
FAILURES = ("overloaded", "rate_limit", "network", "startup_timeout", "rejected_reply", "content_filter")
WAYS = (
    "half-shown reply taken back",
    "another's reply is sent",
    "own reply is sent",
    "all have failed",
    "answer",
)
RETRY = RetryPolicy(first_delay=0.001, max_delay=0.001, alike=None)
SETTINGS = Settings(coalesce=0, poll_interval=1000, lease=3000, renew_every=1000, retry=RETRY)


@tool
async def look() -> str:
    """Look around."""
    return "seen"


class World:
    """Models with drawn failures and answers, and checks of their requests."""

    def __init__(self, random: Random, met: Counter[str]) -> None:
        self.random, self.met = random, met
        self.providers = PROVIDERS[: random.choice([2, 3])]
        self.models = [ScriptedModel(partial(self.reply, one), name=f"{one}-1", provider=one) for one in self.providers]
        self.failed: list[tuple[str, str]] = []
        """The models before the next one, and the kinds of their errors."""
        self.answers: list[tuple[str, list[tuple[str, str]]]] = []
        self.wrong: list[str] = []
        self.calls = 0

    def reply(self, provider: str, request: ModelRequest) -> Reply:
        self.calls += 1
        expected = self.providers[len(self.failed)]
        if provider != expected:
            self.wrong.append(f"{provider} was asked after {self.failed}")
        self.wrong += [
            f"{provider} got {message}" for message in request.messages if not self.may_get(provider, message)
        ]
        own = {"metadata": {"provider": provider, "id": str(self.calls)}}
        parts = [ModelPart("reasoning_delta", text="hm", signature=f"{provider}'s", **own)]
        parts += [ModelPart("text_delta", text=text, **own) for text in ("so ", "be it")]
        if self.random.random() < 0.55:
            kind = self.random.choice(FAILURES)
            self.note_failure(provider, kind)
            return Reply(parts=parts, error=ModelError(kind), error_after=self.random.randint(0, 3), delay=0.0005)
        if self.random.random() < 0.4:
            parts.append(ModelPart("tool_call", id=f"c{self.calls}", name="look", arguments={}, **own))
        self.answers.append((provider, list(self.failed)))
        return Reply(parts=[*parts, ModelPart("finish", stop_reason="end_turn", metadata={"response_id": provider})])

    def note_failure(self, provider: str, kind: str) -> None:
        if kind in FALLBACK_KINDS:
            self.failed.append((provider, kind))
        if len(self.failed) == len(self.providers):
            self.met["all have failed"] += 1
            self.failed.clear()

    def may_get(self, provider: str, message: object) -> bool:
        made_by = getattr(message, "provider", None)
        if made_by is None:
            return True
        parts = message.parts  # type: ignore[attr-defined]
        signed = [part for part in parts if isinstance(part, ReasoningPart) and part.signature is not None]
        if made_by == provider:
            self.met["own reply is sent"] += 1
            return bool(signed) or message.partial  # type: ignore[attr-defined]
        self.met["another's reply is sent"] += 1
        return not signed and not any(part.metadata for part in parts) and message.response_id is None  # type: ignore[attr-defined]


async def test_models_answer_in_their_order() -> None:
    met = Counter[str]()
    for seed in seeds(60):
        with named(seed):
            await live(World(Random(seed), met))  # noqa: S311 - no secret
    assert {way: met[way] for way in WAYS if met[way] < 50} == {}


async def live(world: World) -> None:
    async with Engine("sqlite://", model=world.models, tools=[look], settings=SETTINGS) as engine:
        chat = await engine.create_chat()
        for turn in range(4):
            world.failed.clear()
            await engine.ask(chat.id, f"text {turn}")
        check_events([event async for event in engine.events(chat.id, follow=False)], world.met)
        messages = [one for one in await engine.messages(chat.id) if one.role == "assistant" and not one.partial]
        noted = [(one.provider, [(model.provider, model.kind) for model in one.fallback_from]) for one in messages]
        assert noted == world.answers
        world.met["answer"] += len(noted)
        assert (await engine.verify(chat.id)).ok
    assert world.wrong == []


def check_events(events: list[Event], met: Counter[str]) -> None:
    shown: tuple[int, int] | None = None
    for event in events:
        match event:
            case PartEvent():
                assert shown in (None, (event.step, event.attempt)), "two replies are shown"
                shown = event.step, event.attempt
            case AttemptDiscardedEvent() if shown == (event.step, event.attempt):
                met["half-shown reply taken back"] += 1
                shown = None
            case MessageEvent() if event.message.role == "assistant":
                shown = None


@pytest.mark.parametrize("place", ["before", "after"])
async def test_worker_that_takes_over_asks_the_next_model(place: str) -> None:
    asked = Counter[str]()

    def answer(provider: str, _: ModelRequest) -> Reply:
        asked[provider] += 1
        return Reply("half", error=ModelError("overloaded"), error_after=1) if provider == "first" else Reply("Done.")

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        return Engine(
            store, model=[ScriptedModel(partial(answer, one), provider=one) for one in PROVIDERS], clock=clock
        )

    async def check(engine: Engine) -> None:
        (chat,) = (await engine.list_chats()).items
        answer = (await engine.messages(chat.id))[-1]
        why = (ModelFailure(provider="first", model="scripted", kind="overloaded"),)
        assert (answer.text, answer.provider, answer.fallback_from) == ("Done.", "second", why)
        assert asked["third"] == 0

    async def order(engine: Engine) -> None:
        await engine.create_chat(message="Hi.", client_id="order")

    only = f"{place} the commit of fallback_started"
    report = await crash_everywhere(engine, order, check=check, reset=asked.clear, only=only)
    assert (len(report.points), asked["first"]) == (1, {"before": 2, "after": 1}[place])
    await crash_everywhere(engine, order, check=check, reset=asked.clear)
