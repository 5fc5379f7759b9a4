"""Several models of one agent: failures that lead to the next model, costs, and reports to operators and clients."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.clock import pass_time
from support.engines import OpenEngine
from support.events import events_of, seen
from support.latches import Latch
from support.served import served
from support.terminal import Terminal
from turnwise import Agent, CompactionPolicy, Engine, ModelError, RetryPolicy, Settings, SettingsError, Usage
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.providers.usage_and_prices import add_cost
from turnwise.testing import ManualClock

SLOW = Settings(poll_interval=10_000, lease=100_000, renew_every=10_000)
DOWN = Reply(error=ModelError("overloaded", status=529))


def model(name: str, *replies: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), name="m", provider=name, **options)


async def test_retries_begin_once_all_models_have_failed(open_engine: OpenEngine) -> None:
    """The back-off belongs to the step, uses the longest delay of any provider, and starts with the first model."""
    clock = ManualClock()
    first = model("first", Reply(error=ModelError("rate_limit", retry_after=9)), "recovered")
    second = model("second", Reply(error=ModelError("overloaded", retry_after=500)))
    async with open_engine([first, second], clock=clock, settings=SLOW) as engine:
        chat = await engine.create_chat(message="Hi.")
        await seen(engine, chat.id, "retry", 2)
        fallback, backoff = await events_of(engine, chat.id, "retry")
        assert (fallback.delay, fallback.next_model, fallback.retry_at) == (0, "m", clock.now())  # type: ignore[union-attr]
        assert (backoff.delay, backoff.next_model) == (9, None)  # type: ignore[union-attr]
        assert (await engine.explain(chat.id)).next_timer == clock.now() + timedelta(seconds=9)
        await pass_time(clock, 9)
        await engine.wait(chat.id)
        answer = (await engine.messages(chat.id))[-1]
        assert (answer.text, answer.fallback_from) == ("recovered", ())


@pytest.mark.parametrize(
    ("policy", "error", "answers"),
    [
        ({}, ModelError("bad_request"), None),
        ({}, ModelError("authentication"), None),
        ({"fallback_on": ["authentication"]}, ModelError("authentication"), "second"),
        ({"fallback_on": []}, ModelError("overloaded"), "first"),
        ({"after_output": "never"}, ModelError("network"), None),
    ],
)
async def test_declared_failures_lead_to_the_next_model(
    open_engine: OpenEngine, policy: Any, error: ModelError, answers: str | None
) -> None:
    first = model("first", Reply("half", error=error, error_after=1), "Yes.")
    settings = Settings(retry=RetryPolicy(first_delay=0.001, **policy))
    async with open_engine([first, model("second", "Yes.")], settings=settings) as engine:
        result = await engine.ask((await engine.create_chat()).id, "Hi.")
        assert (result.messages[-1].provider if result.stop_reason == "end_turn" else None) == answers


async def test_price_and_window_are_those_of_the_model(open_engine: OpenEngine) -> None:
    """Price and window come from the model that answered; the next turn starts with the first model and its window."""
    used = (40_000, 10)
    first = ScriptedModel([DOWN, "short"], name="claude-sonnet-4-5", provider="anthropic", context_limit=100_000)
    second = ScriptedModel([Reply("long", usage=used)], name="gpt-5-mini", provider="openai", context_limit=45_000)
    compaction = CompactionPolicy(after_final_step="rest")
    async with open_engine([first, second], settings=Settings(compaction=compaction)) as engine:
        chat = await engine.create_chat()
        asked = await engine.ask(chat.id, "Hi.")
        (answer,) = (one for one in asked.messages if one.role == "assistant")
        assert answer.usage == add_cost(second, Usage(input_tokens=40_000, output_tokens=10), answer.created_at)
        assert answer.usage.cost
        assert [each.step for each in await engine.compactions(chat.id)] == [1], "40,000 of 45,000 tokens are too many"
        assert (await engine.ask(chat.id, "And now?")).messages[-1].provider == "anthropic"


async def test_next_model_writes_the_summary(open_engine: OpenEngine) -> None:
    first = model("first", "one", "two", summary=DOWN, context_limit=1000)
    second = model("second", summary="in short", context_limit=1000)
    async with open_engine([first, second]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Hi.")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id)
        assert ["in short" in one.text for one in await engine.messages(chat.id, view="model")] == [True]
        assert [request.purpose for request in second.requests] == ["summary"]
        assert (await engine.ask(chat.id, "Again.")).text == "two", "the next turn asks the first model"


async def test_model_chosen_meanwhile_is_asked(open_engine: OpenEngine) -> None:
    """A failure of a removed model skips none of the new ones."""
    latch = Latch()
    first = model(
        "first", Reply("half", first_delay=1, error=ModelError("overloaded"), error_after=1), sleep=latch.pass_through
    )
    async with open_engine([first, model("second", "no")]) as engine:
        chat = await engine.create_chat(message="Hi.")
        await latch.entered.wait()
        await engine.configure(chat.id, model="demo")
        latch.open()
        await engine.wait(chat.id)
        answer = (await engine.messages(chat.id))[-1]
        assert (answer.provider, answer.fallback_from) == ("demo", ())


async def test_client_and_terminal_see_who_did_not_answer(tmp_path: Path) -> None:
    url, latch = f"sqlite:///{tmp_path / 'chats.db'}", Latch()
    second = model("second", Reply("Yes.", first_delay=1), sleep=latch.pass_through)
    engine = Engine(url, model=[model("first", DOWN), second])
    async with served(engine) as service, service.client() as client:
        chat = await engine.create_chat(owner="ada", message="Hi.")
        await latch.entered.wait()
        explained = (await client.get(f"/chats/{chat.id}/explain")).json()
        assert "asked instead of first:m (overloaded)" in explained["reason"]
        latch.open()
        await engine.wait(chat.id)
        answer = (await client.get(f"/chats/{chat.id}/messages")).json()[-1]
        assert (answer["provider"], answer["fallback_from"][0]["kind"]) == ("second", "overloaded")
    shown = await anyio.to_thread.run_sync(partial(Terminal(tmp_path).run, "audit", chat.id, "--store", url))
    assert "fallback_started" in shown.out


def test_agent_needs_at_least_one_model() -> None:
    with pytest.raises(SettingsError, match="agent 'one': needs a model, of its own or the engine's"):
        Engine("sqlite://", agents=[Agent("one", model=[])])
