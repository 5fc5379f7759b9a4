"""Compaction: when it is due, what it tells, what it keeps, and that it neither loops nor fails a turn."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from watching import Gate, MakeModel, OpenEngine, Started, assert_told_right, log, phases, said, seen

from turnwise import (
    Budget,
    ClientTool,
    CompactionPolicy,
    Folded,
    Message,
    ModelError,
    NothingToCompact,
    Settings,
    ToolResult,
    tool,
)
from turnwise.engine.settings import SUMMARY_PREFIX, SUMMARY_PROMPT
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import CompactionEvent, MessageEvent, StatusEvent
from turnwise.states.messages import MarkerPart
from turnwise.testing.clock import ManualClock

FULL = ["started", "summarised", "stored", "finished"]
SUMMARY = ("user", SUMMARY_PREFIX + "summary")
ASK = ClientTool("ask", "Ask the person.", {"type": "object"})


@tool
async def look() -> str:
    """Look around."""
    return "2 things"


def compacting(**policy: Any) -> Settings:
    return Settings(coalesce=0, poll_interval=1000, lease=3000, renew_every=1000, compaction=CompactionPolicy(**policy))


def step_requests(model: ScriptedModel) -> list[list[tuple[str, Any]]]:
    return [said(request.messages) for request in model.requests if request.purpose == "step"]


@pytest.mark.parametrize(("used", "told"), [(69, []), (70, FULL)])
async def test_a_compaction_is_due_at_the_threshold_and_not_below(
    open_engine: OpenEngine, strict_model: MakeModel, used: int, told: list[str]
) -> None:
    model = strict_model([Reply("hi", usage=(used, 5)), Reply("go on", usage=(10, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(threshold_percent=70)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        events = [event for event in await log(engine, chat.id) if isinstance(event, CompactionEvent)]
        assert [event.phase for event in events] == told
        for event in events:
            assert (event.percent, event.context_tokens, event.context_limit, event.estimated) == (70, 70, 100, False)
        await assert_told_right(engine, chat.id)


async def test_a_compaction_is_told_before_the_change_of_state_it_leads_to(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("hi", usage=(80, 5)), "go on"], context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        told: list[str] = []
        for event in await log(engine, chat.id):
            match event:
                case CompactionEvent():
                    told.append(event.phase)
                case StatusEvent():
                    told.append(event.state)
                case MessageEvent() if isinstance(event.message.parts[0], MarkerPart):
                    told.append("marker")
                case _:
                    pass
        start = told.index("compacting")
        assert told[start : start + 7] == [
            "compacting",
            "started",
            "summarised",
            "marker",
            "stored",
            "finished",
            "streaming",
        ]


async def test_a_turn_at_its_last_step_is_compacted_once_and_ends(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("", calls=[Call("look", {})], usage=(80, 5))], context_limit=100)
    settings = Settings(coalesce=0, max_steps=1)
    async with open_engine(model, settings=settings, tools=[look]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert (result.stop_reason, result.chat.state) == ("max_steps", "waiting")
        assert await phases(engine, chat.id) == FULL
        assert len(step_requests(model)) == 1


async def test_a_compaction_does_not_reset_the_count_of_steps(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    again = Reply("", calls=[Call("look", {})], usage=(20, 5))
    model = strict_model([Reply("", calls=[Call("look", {})], usage=(80, 5)), again], context_limit=100)
    async with open_engine(model, settings=Settings(coalesce=0, max_steps=2), tools=[look]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).stop_reason == "max_steps"
        assert len(step_requests(model)) == 2


async def test_in_the_middle_of_a_turn_the_next_step_sees_the_folded_history(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
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
        assert said(summary.messages) == [
            ("user", "hello"),
            ("assistant", "see"),
            ("tool", "2 things"),
            ("user", SUMMARY_PROMPT),
        ]
        assert (summary.system, summary.tools) == (first.system, first.tools)
        assert said(second.messages) == [SUMMARY]
        # The transcript stays readable, with a marker where the model's memory begins.
        assert [role for role, _ in said(await engine.messages(chat.id))] == [
            "user",
            "assistant",
            "tool",
            "system",
            "assistant",
        ]


async def test_after_a_final_answer_the_model_is_asked_once_more_with_the_summary(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("first", usage=(80, 5)), Reply("second", usage=(20, 5))], context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert (result.text, result.stop_reason) == ("second", "end_turn")
        assert step_requests(model) == [[("user", "hello")], [SUMMARY]]


async def test_after_a_final_answer_the_chat_rests_where_that_is_wanted(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("first", usage=(80, 5)), Reply("second", usage=(20, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(after_final_step="rest")) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).text == "first"
        assert await phases(engine, chat.id) == FULL
        await engine.ask(chat.id, "and now?")
        assert step_requests(model)[1] == [SUMMARY, ("user", "and now?")]


@pytest.mark.parametrize("reentries", [0, 3])
async def test_a_turn_is_reopened_a_limited_number_of_times(
    open_engine: OpenEngine, strict_model: MakeModel, reentries: int
) -> None:
    def endless(request: Any) -> Reply:
        """Use a tool after each compaction, so that none is unproductive, then end the turn over the threshold."""
        looked = any(message.role == "tool" for message in request.messages)
        return Reply("over", usage=(80, 5)) if looked else Reply("", calls=[Call("look", {})], usage=(20, 5))

    model = strict_model(endless, context_limit=100)
    async with open_engine(model, settings=compacting(max_reentries=reentries), tools=[look]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).stop_reason == "end_turn"
        assert await phases(engine, chat.id) == FULL * (reentries + 1)
        assert len(step_requests(model)) == 2 * (reentries + 1)


async def test_an_unproductive_compaction_is_told_and_the_turn_compacts_no_more(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    over = Reply("", calls=[Call("look", {})], usage=(90, 5))
    model = strict_model([over, over, over, Reply("done", usage=(90, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert (result.text, result.stop_reason, result.chat.state) == ("done", "end_turn", "waiting")
        assert await phases(engine, chat.id) == [*FULL, "unproductive"]


async def test_a_later_turn_may_compact_again_after_an_unproductive_compaction(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    over = Reply("over", usage=(90, 5))
    model = strict_model([over, over, over, Reply("small", usage=(10, 5))], context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "one")
        assert await phases(engine, chat.id) == [*FULL, "unproductive"]
        await engine.ask(chat.id, "two")
        assert await phases(engine, chat.id) == [*FULL, "unproductive", *FULL]


@pytest.mark.parametrize(
    ("summary", "kind"),
    [
        (Reply(error=ModelError("overloaded")), "overloaded"),
        (Reply(error=ModelError("authentication")), "authentication"),
        (Reply(" \n"), "bad_request"),
        (Reply(parts=[]), "bad_request"),
    ],
)
async def test_a_failed_summary_is_told_and_the_turn_goes_on_with_its_history(
    open_engine: OpenEngine, strict_model: MakeModel, summary: Reply, kind: str
) -> None:
    model = strict_model(
        [Reply("see", calls=[Call("look", {})], usage=(80, 5)), Reply("done", usage=(20, 5))],
        summary=summary,
        context_limit=100,
    )
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert (result.text, result.chat.state) == ("done", "waiting")
        failed = await seen(engine, chat.id, "compaction", phase="failed")
        assert failed.error.kind == kind
        assert await phases(engine, chat.id) == ["started", "failed"]
        assert step_requests(model)[1] == [("user", "hello"), ("assistant", "see"), ("tool", "2 things")]
        await assert_told_right(engine, chat.id)


async def test_an_empty_summary_is_paid_for_all_the_same(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model([Reply("hi", usage=(80, 5))], summary=Reply("", usage=(50, 1)), context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        usage = (await engine.ask(chat.id, "hello")).usage
        assert (usage.input_tokens, usage.partial) == (130, False)
        assert usage.compaction is not None
        assert usage.compaction.input_tokens == 50


async def test_a_message_that_alone_waits_for_its_answer_is_nothing_to_fold(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    silent = Started(Reply(stall_after=0))
    async with open_engine(strict_model([silent, "well"]), settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "my question")
        await silent.asked.wait()
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        await engine.request_compaction(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert await phases(engine, chat.id) == ["started", "failed"]
        assert said(await engine.messages(chat.id, view="model")) == [("user", "my question")]


async def test_after_a_failure_a_later_step_is_compacted_afresh(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    summaries = iter([Reply(error=ModelError("network")), "summary"])
    over = Reply("", calls=[Call("look", {})], usage=(80, 5))
    model = strict_model(
        [over, over, Reply("done", usage=(20, 5))], summary=lambda _: next(summaries), context_limit=100
    )
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).text == "done"
        assert await phases(engine, chat.id) == ["started", "failed", *FULL]


async def test_a_final_step_whose_compaction_failed_ends_the_turn(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("done", usage=(80, 5))], summary=Reply(""), context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert (result.text, result.stop_reason, result.chat.last_error) == ("done", "end_turn", None)
        assert await phases(engine, chat.id) == ["started", "failed"]


async def test_a_summary_that_does_not_come_in_time_is_given_up(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    clock, silent = ManualClock(), Started(Reply("late", stall_after=0))
    model = strict_model([Reply("done", usage=(80, 5))], summary=silent, context_limit=100)
    async with open_engine(model, settings=compacting(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await silent.asked.wait()
        assert clock.next_timer == clock.now() + timedelta(seconds=90)
        await clock.advance(90)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (await seen(engine, chat.id, "compaction", phase="failed")).error.kind == "network"


@pytest.mark.parametrize(
    ("limit", "policy"),
    [
        (None, {}),
        (100, {"context_limit": 0}),
        (100, {"threshold_percent": 100}),
        (None, {"context_limit": 1000}),
    ],
)
async def test_without_a_limit_or_with_compaction_off_none_is_ever_due(
    open_engine: OpenEngine, strict_model: MakeModel, limit: int | None, policy: dict[str, Any]
) -> None:
    model = strict_model([Reply("hi", usage=(100, 5))], context_limit=limit)
    async with open_engine(model, settings=compacting(**policy)) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).chat.state == "waiting"
        assert await phases(engine, chat.id) == []


async def test_a_configured_limit_counts_where_the_provider_reports_none(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("hi", usage=(80, 5)), Reply("go on", usage=(10, 5))])
    async with open_engine(model, settings=compacting(context_limit=100)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert await phases(engine, chat.id) == FULL


async def test_where_no_usage_is_reported_the_context_is_estimated_and_the_record_says_so(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model(["hi", "go on"], context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "x" * 400)
        started = await seen(engine, chat.id, "compaction", phase="started")
        assert (started.estimated, started.context_tokens) == (True, 100)


async def test_the_cost_of_a_compaction_is_in_the_total_and_in_its_own_share(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("hi", usage=(100, 30))], summary=Reply("summary", usage=(50, 20)), context_limit=100)
    async with open_engine(model, settings=compacting(after_final_step="rest")) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        for usage in (result.usage, result.chat.usage):
            assert (usage.input_tokens, usage.output_tokens, usage.partial) == (150, 50, False)
            assert usage.compaction is not None
            assert (usage.compaction.input_tokens, usage.compaction.output_tokens) == (50, 20)


async def test_a_requested_compaction_needs_no_threshold_and_ends_in_rest(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model(["hi", "bye"])
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        with pytest.raises(NothingToCompact):
            await engine.request_compaction(chat.id)
        await engine.ask(chat.id, "hello")
        await engine.request_compaction(chat.id)
        rested = await engine.wait(chat.id)
        assert (rested.state, rested.step) == ("waiting", 2)
        assert await phases(engine, chat.id) == FULL
        assert [request.purpose for request in model.requests] == ["step", "summary"]
        assert said(await engine.messages(chat.id, view="model")) == [SUMMARY]
        await engine.ask(chat.id, "and now?")
        assert step_requests(model)[-1] == [SUMMARY, ("user", "and now?")]
        await assert_told_right(engine, chat.id)


async def test_a_user_message_that_was_not_answered_is_carried_verbatim(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    silent = Started(Reply(stall_after=0))
    model = strict_model(["hi", silent, "at last"])
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await engine.send_message(chat.id, "my question")
        await silent.asked.wait()
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        await engine.request_compaction(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        await engine.ask(chat.id, "well?")
        assert step_requests(model)[-1] == [SUMMARY, ("user", "my question"), ("user", "well?")]


async def test_open_client_calls_are_carried_with_their_message_and_results(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    calls = [Call("look", {}, id="l"), Call("ask", {}, id="a")]
    model = strict_model([Reply("both", calls=calls, usage=(80, 5)), Reply("done", usage=(20, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        asked = await engine.ask(chat.id, "hello")
        assert asked.chat.state == "requires_action"
        assert await phases(engine, chat.id) == FULL
        states = [event.state for event in await log(engine, chat.id) if isinstance(event, StatusEvent)]
        assert states[-2:] == ["compacting", "requires_action"]
        await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])
        await engine.wait(chat.id)
        assert step_requests(model)[1] == [SUMMARY, ("assistant", "both"), ("tool", "2 things"), ("tool", "yes")]


async def test_a_stop_after_tool_ends_the_turn_only_after_a_due_compaction(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    last = Gate("last", stop_after=True)
    last.open.set()
    model = strict_model([Reply("", calls=[Call("last", {})], usage=(80, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(), tools=[last.tool]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).stop_reason == "stop_after_tool"
        assert await phases(engine, chat.id) == FULL
        assert len(step_requests(model)) == 1


async def test_a_model_of_its_own_may_write_the_summaries_and_the_stricter_limit_counts(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    writer = strict_model([], summary="short", context_limit=50)
    model = strict_model([Reply("hi", usage=(40, 5)), Reply("go on", usage=(10, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(model=writer)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        started = await seen(engine, chat.id, "compaction", phase="started")
        assert (started.percent, started.context_limit) == (80, 50)
        assert [request.purpose for request in writer.requests] == ["summary"]
        assert step_requests(model)[1] == [("user", SUMMARY_PREFIX + "short")]


async def test_a_strategy_may_fold_as_it_likes_and_what_it_keeps_stays_paired(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    budgets: list[Budget] = []

    async def keep_results(messages: Sequence[Message], budget: Budget) -> Folded:
        budgets.append(budget)
        told = messages[0].model_copy(update={"position": 0, "parts": messages[0].parts})
        return Folded(messages=[told, *(message for message in messages if message.role == "tool")])

    model = strict_model(
        [Reply("see", calls=[Call("look", {})], usage=(80, 5)), Reply("done", usage=(20, 5))], context_limit=100
    )
    async with open_engine(model, settings=compacting(strategy=keep_results), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert budgets == [Budget(context_tokens=80, context_limit=100, compactions=0)]
        assert step_requests(model)[1] == [("user", "hello"), ("assistant", "see"), ("tool", "2 things")]


async def test_a_strategy_that_folds_nothing_leaves_the_history_untouched(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    async def nothing(messages: Sequence[Message], budget: Budget) -> None:
        return None

    model = strict_model([Reply("hi", usage=(80, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(strategy=nothing)) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).chat.state == "waiting"
        assert said(await engine.messages(chat.id, view="model")) == [("user", "hello"), ("assistant", "hi")]
        assert await phases(engine, chat.id) == ["started", "failed"]


async def test_only_the_providers_own_overflow_ends_in_error(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model([Reply(error=ModelError("context_overflow"))], context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert result.chat.state == "error"
        assert result.chat.last_error is not None
        assert result.chat.last_error.kind == "context_overflow"


async def test_clearing_the_context_needs_no_model_and_keeps_the_transcript(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model(["hi", "fresh"])
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert (await engine.clear_context(chat.id)).state == "waiting"
        await engine.ask(chat.id, "anew")
        assert step_requests(model) == [[("user", "hello")], [("user", "anew")]]
        assert [role for role, _ in said(await engine.messages(chat.id))] == [
            "user",
            "assistant",
            "system",
            "user",
            "assistant",
        ]
        await assert_told_right(engine, chat.id)
