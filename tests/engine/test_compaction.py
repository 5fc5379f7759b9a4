"""Compaction: when it starts, what it folds and retains, without loops or failed turns."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.engine.chats import contents

from support.clock import pass_time
from support.engines import MakeModel, OpenChat, OpenEngine
from support.events import assert_told_right, events_of, phases, seen, shown
from support.latches import Gate, Started
from turnwise import CompactionInput, CompactionPolicy, CompactionResult, Message, ModelError, Settings, tool
from turnwise.engine.config.settings import SUMMARY_PROMPT
from turnwise.engine.prompt.history import SUMMARY_PREFIX
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import CompactionEvent
from turnwise.testing.clock import ManualClock

FULL = ["started", "summarised", "stored", "finished"]
SUMMARY = ("user", SUMMARY_PREFIX + "summary")


@tool
async def look() -> str:
    """Look around."""
    return "2 things"


def compacting(**policy: Any) -> Settings:
    return Settings(coalesce=0, poll_interval=1000, lease=3000, renew_every=1000, compaction=CompactionPolicy(**policy))


@pytest.fixture
def open_full(open_chat: OpenChat) -> OpenChat:
    def opened(script: Any, **options: Any) -> Any:
        known: dict[str, Any] = {"context_limit": 100, "settings": compacting(), "tools": [look]}
        return open_chat(script, **known | options)

    return opened


def step_requests(model: ScriptedModel) -> list[list[tuple[str, Any]]]:
    return [contents(request.messages) for request in model.requests if request.purpose == "step"]


@pytest.mark.parametrize(("used", "expected"), [(69, []), (70, FULL)])
async def test_compaction_starts_at_threshold(open_full: OpenChat, used: int, expected: list[str]) -> None:
    script = [Reply("hi", usage=(used, 5)), Reply("go on", usage=(10, 5))]
    async with open_full(script, settings=compacting(threshold_percent=70)) as (engine, chat, _):
        await engine.ask(chat.id, "hello")
        events = [event for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)]
        assert [event.phase for event in events] == expected
        for event in events:
            assert (event.percent, event.context_tokens, event.context_limit, event.estimated) == (70, 70, 100, False)
        await assert_told_right(engine, chat.id)


async def test_last_step_compacts_once_and_turn_ends(open_full: OpenChat) -> None:
    settings = Settings(coalesce=0, max_steps=1)
    script = [Reply("", calls=[Call("look", {})], usage=(80, 5))]
    async with open_full(script, settings=settings) as (engine, chat, model):
        result = await engine.ask(chat.id, "hello")
        assert (result.stop_reason, result.chat.state) == ("max_steps", "waiting")
        assert await phases(engine, chat.id) == FULL
        assert len(step_requests(model)) == 1


async def test_compaction_does_not_reset_step_count(open_full: OpenChat) -> None:
    again = Reply("", calls=[Call("look", {})], usage=(20, 5))
    script = [Reply("", calls=[Call("look", {})], usage=(80, 5)), again]
    async with open_full(script, settings=Settings(coalesce=0, max_steps=2)) as (engine, chat, model):
        assert (await engine.ask(chat.id, "hello")).stop_reason == "max_steps"
        assert len(step_requests(model)) == 2


async def test_next_step_sees_compacted_history(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(
        [Reply("see", calls=[Call("look", {})], usage=(80, 5)), Reply("done", usage=(20, 5))], context_limit=100
    )
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat(system="Be brief.")
        result = await engine.ask(chat.id, "hello")
        assert result.text == "done"
        assert await phases(engine, chat.id) == FULL
        first, summary, second = model.requests
        assert summary.purpose == "summary"
        expected = [("user", "hello"), ("assistant", "see"), ("tool", "2 things"), ("user", SUMMARY_PROMPT)]
        assert contents(summary.messages) == expected
        assert (summary.system, summary.tools) == (first.system, first.tools)
        assert contents(second.messages) == [SUMMARY, ("user", "hello")]
        # The transcript stays readable, with a marker where the model's memory begins.
        roles = [role for role, _ in contents(await engine.messages(chat.id))]
        assert roles == ["user", "assistant", "tool", "system", "assistant"]


async def test_final_answer_over_limit_is_followed_by_a_step(open_full: OpenChat) -> None:
    script = [Reply("first", usage=(80, 5)), Reply("second", usage=(20, 5))]
    async with open_full(script) as (engine, chat, model):
        result = await engine.ask(chat.id, "hello")
        assert (result.text, result.stop_reason) == ("second", "end_turn")
        assert step_requests(model) == [[("user", "hello")], [SUMMARY]]


async def test_after_final_step_rest_makes_no_new_step(open_full: OpenChat) -> None:
    script = [Reply("first", usage=(80, 5)), Reply("second", usage=(20, 5))]
    async with open_full(script, settings=compacting(after_final_step="rest")) as (engine, chat, model):
        assert (await engine.ask(chat.id, "hello")).text == "first"
        assert await phases(engine, chat.id) == FULL
        await engine.ask(chat.id, "and now?")
        assert step_requests(model)[1] == [SUMMARY, ("user", "and now?")]


@pytest.mark.parametrize(
    ("summary", "kind"),
    [
        (Reply(error=ModelError("overloaded")), "overloaded"),
        (Reply("I cannot help with that.", stop_reason="content_filter"), "content_filter"),
        (Reply("The user wants to", stop_reason="max_tokens"), "bad_request"),
        (Reply("The user wants to", stop_reason="abort"), "bad_request"),
        (Reply(" \n"), "bad_request"),
        (Reply(parts=[]), "bad_request"),
    ],
)
async def test_failed_summary_keeps_history_and_turn(open_full: OpenChat, summary: Reply, kind: str) -> None:
    script = [Reply("see", calls=[Call("look", {})], usage=(80, 5)), Reply("done", usage=(20, 5))]
    async with open_full(script, summary=summary) as (engine, chat, model):
        result = await engine.ask(chat.id, "hello")
        assert (result.text, result.chat.state) == ("done", "waiting")
        failed = await seen(engine, chat.id, "compaction", phase="failed")
        assert failed.error.kind == kind
        assert await phases(engine, chat.id) == ["started", "failed"]
        assert step_requests(model)[1] == [("user", "hello"), ("assistant", "see"), ("tool", "2 things")]
        await assert_told_right(engine, chat.id)


async def test_summary_alone_is_not_summarised_again(open_chat: OpenChat) -> None:
    """Each try would cost as much and lose detail; later messages are folded with it."""
    silent = Started(Reply(stall_after=0))
    script = ["noted", silent, "well", "good"]
    async with open_chat(script, summary="they talked", settings=compacting()) as (engine, chat, model):
        await engine.ask(chat.id, "remember this")
        await engine.send_message(chat.id, "my question")
        await silent.asked.wait()
        await engine.interrupt(chat.id)
        for _ in range(3):
            await engine.wait(chat.id)
            await engine.request_compaction(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert await phases(engine, chat.id) == [*FULL, "started", "declined", "started", "declined"]
        seen = [("user", SUMMARY_PREFIX + "they talked"), ("user", "my question")]
        assert contents(await engine.messages(chat.id, view="model")) == seen
        await engine.ask(chat.id, "and?")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id)
    assert [request.purpose for request in model.requests] == ["step", "step", "summary", "step", "summary"]


async def test_summary_timeout_fails_the_compaction(open_full: OpenChat) -> None:
    clock, silent = ManualClock(), Started(Reply("late", stall_after=0))
    async with open_full([Reply("done", usage=(80, 5))], summary=silent, clock=clock) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        await silent.asked.wait()
        await pass_time(clock, 90)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (await seen(engine, chat.id, "compaction", phase="failed")).error.kind == "network"


async def test_stop_after_tool_ends_after_due_compaction(open_full: OpenChat) -> None:
    last = Gate("last", stop_after=True)
    last.open.set()
    script = [Reply("", calls=[Call("last", {})], usage=(80, 5))]
    async with open_full(script, tools=[last.tool]) as (engine, chat, model):
        assert (await engine.ask(chat.id, "hello")).stop_reason == "stop_after_tool"
        assert await phases(engine, chat.id) == FULL
        assert len(step_requests(model)) == 1


async def test_own_summary_model_and_stricter_limit(open_full: OpenChat, strict_model: MakeModel) -> None:
    writer = strict_model([], summary="short", context_limit=50)
    script = [Reply("hi", usage=(40, 5)), Reply("go on", usage=(10, 5))]
    async with open_full(script, settings=compacting(model=writer)) as (engine, chat, model):
        await engine.ask(chat.id, "hello")
        started = await seen(engine, chat.id, "compaction", phase="started")
        assert (started.percent, started.context_limit) == (80, 50)
        assert [request.purpose for request in writer.requests] == ["summary"]
        assert step_requests(model)[1] == [("user", SUMMARY_PREFIX + "short")]


async def test_strategy_result_keeps_calls_paired(open_full: OpenChat) -> None:
    budgets: list[CompactionInput] = []

    async def keep_results(messages: Sequence[Message], budget: CompactionInput) -> CompactionResult:
        budgets.append(budget)
        first = replace(messages[0], position=0, parts=messages[0].parts)
        return CompactionResult(messages=[first, *(message for message in messages if message.role == "tool")])

    script = [Reply("see", calls=[Call("look", {})], usage=(80, 5)), Reply("done", usage=(20, 5))]
    async with open_full(script, settings=compacting(strategy=keep_results)) as (engine, chat, model):
        await engine.ask(chat.id, "hello")
        assert [(one.context_tokens, one.context_limit, one.compactions) for one in budgets] == [(80, 100, 0)]
        assert step_requests(model)[1] == [("user", "hello"), ("assistant", "see"), ("tool", "2 things")]


async def test_open_turn_message_survives_compactions(open_full: OpenChat) -> None:
    """Neither a bare tool call nor text beside one is an answer, at any compaction."""
    over = Reply("looking", calls=[Call("look", {})], usage=(80, 5))
    fits = Reply("", calls=[Call("look", {})], usage=(20, 5))
    script = [over, fits, over, Reply("done", usage=(20, 5)), over, "done"]
    async with open_full(script) as (engine, chat, model):
        await engine.ask(chat.id, "my very words")
        words = ("user", "my very words")
        requests = step_requests(model)
        assert requests[1] == [SUMMARY, words]
        assert requests[3] == [SUMMARY, words]
        await engine.ask(chat.id, "other words")
        assert step_requests(model)[-1] == [SUMMARY, ("user", "other words")]


async def test_second_compaction_folds_first_summary(open_full: OpenChat) -> None:
    """Each of the user's messages is carried once."""
    over = Reply("", calls=[Call("look", {})], usage=(80, 5))
    fits = Reply("", calls=[Call("look", {})], usage=(20, 5))
    summaries = iter(["first", "second"])
    async with open_full([over, fits, over, "done"], summary=lambda _: next(summaries)) as (engine, chat, model):
        await engine.ask(chat.id, "hello")
        assert step_requests(model)[-1] == [("user", SUMMARY_PREFIX + "second"), ("user", "hello")]
        events = [event for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)]
        assert [(event.folded, event.carried) for event in events if event.phase == "stored"] == [(2, 1), (5, 1)]


async def test_partial_answer_leaves_message_open(open_full: OpenChat) -> None:
    """Messages of stopped turns are carried, too, until a reply answers them."""
    stopped = Started(Reply("half an answer", stall_after=1))
    over = Reply("", calls=[Call("look", {})], usage=(80, 5))
    script = ["hi", stopped, over, "done"]
    async with open_full(script) as (engine, chat, model):
        await engine.ask(chat.id, "answered")
        await engine.send_message(chat.id, "stopped")
        await shown(engine, chat.id, "half an answer")
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        await engine.ask(chat.id, "go on")
        assert step_requests(model)[-1] == [SUMMARY, ("user", "stopped"), ("user", "go on")]


async def test_always_true_rule_does_not_loop(open_full: OpenChat) -> None:
    settings = compacting(should_compact=lambda *_: True)
    async with open_full(Reply("hi", usage=(10, 1)), settings=settings) as (engine, chat, _):
        assert (await engine.ask(chat.id, "hello")).chat.state == "waiting"
        assert await phases(engine, chat.id) == [*FULL, "unproductive"]


async def test_strategy_that_declines_does_not_fail(open_full: OpenChat, caplog: pytest.LogCaptureFixture) -> None:
    """The strategy is asked at every due step, and sees the model's view: system prompt, tools and model."""
    seen: list[CompactionInput] = []

    def decline(_messages: list[Message], figures: CompactionInput) -> None:
        seen.append(figures)

    script = [Reply(calls=[Call("look", {}, id="c")], usage=(90, 1)), Reply("hi", usage=(95, 1))]
    settings = compacting(strategy=decline)
    async with open_full(script, settings=settings, tools=[look], system="Be brief.") as (engine, chat, model):
        assert (await engine.ask(chat.id, "hello")).chat.state == "waiting"
        assert await phases(engine, chat.id) == ["started", "declined"] * 2
        assert [(one.system, [tool.name for tool in one.tools], one.model) for one in seen] == [
            ("Be brief.", ["look"], model)
        ] * 2
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_compaction_reports_the_remaining_context(open_full: OpenChat, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnwise")
    async with open_full([Reply("h" * 800, usage=(80, 5)), Reply("go on", usage=(10, 2))]) as (engine, chat, _):
        await engine.ask(chat.id, "hello")
        folds = [event for event in await events_of(engine, chat.id, "compaction") if event.phase == "finished"]
        assert [(event.folded, event.carried, event.messages_after) for event in folds] == [(2, 0, 1)]
        assert 0 < folds[0].tokens_after < folds[0].context_tokens == 80
        (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("compacted ")]
        assert f"folded=2 carried=0 messages_after=1 context_tokens=80 tokens_after={folds[0].tokens_after}" in line
        (compaction,) = await engine.compactions(chat.id)
        assert (compaction.summary, compaction.raw) == (SUMMARY[1], "summary")


async def test_compactions_and_usage_are_readable(open_full: OpenChat) -> None:
    replies = [Reply("hi", usage=(80, 5)), Reply("go on", usage=(10, 2))]
    async with open_full(replies, summary=Reply("summary", usage=(50, 20))) as (engine, chat, _):
        assert (await engine.compactions(chat.id), await engine.usage(chat.id)) == ([], [])
        result = await engine.ask(chat.id, "hello")
        for usage in (result.usage, result.chat.usage):
            assert (usage.input_tokens, usage.output_tokens, usage.partial) == (140, 27, False)
            assert usage.compaction is not None
            assert (usage.compaction.input_tokens, usage.compaction.output_tokens) == (50, 20)
        (compaction,) = await engine.compactions(chat.id)
        assert (compaction.step, compaction.summary, compaction.carried) == (1, SUMMARY[1], 0)
        assert compaction.usage is not None
        assert compaction.usage.input_tokens == 50
        assert contents(compaction.messages) == [SUMMARY]
        entries = [
            (each.purpose, each.turn, each.step, each.usage.input_tokens) for each in await engine.usage(chat.id)
        ]
        assert entries == [("step", 1, 1, 80), ("summary", 1, 1, 50), ("step", 1, 2, 10)]
        for view in ("user", "raw"):
            assert SUMMARY not in contents(await engine.messages(chat.id, view=view))


@pytest.mark.parametrize(
    ("policy", "limit"), [({}, 400_000), ({"context_limit": 100}, 100), ({"threshold_percent": 100}, None)]
)
async def test_known_model_context_limit_applies(
    open_chat: OpenChat, policy: dict[str, Any], limit: int | None
) -> None:
    script = [Reply("hi", usage=(390_000, 1)), "go on"]
    async with open_chat(script, name="gpt-5", provider="openai", settings=compacting(**policy)) as (engine, chat, _):
        await engine.ask(chat.id, "hello")
        limits = {
            event.context_limit for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)
        }
        assert limits - {None} == ({limit} if limit else set())
