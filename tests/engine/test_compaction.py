"""Compaction: when it is due, what it tells, what it keeps, and that it neither loops nor fails a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from support.chats import said
from support.clock import pass_time
from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of, phases, seen, shown
from support.latches import Gate, Started
from turnwise import (
    Agent,
    ClientTool,
    CompactionInput,
    CompactionPolicy,
    CompactionResult,
    Message,
    ModelError,
    NothingToCompact,
    RequestContext,
    Settings,
    TextPart,
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
        events = [event for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)]
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
        for event in await events_of(engine, chat.id):
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
        assert said(second.messages) == [SUMMARY, ("user", "hello")]
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


async def test_what_finished_requests_of_a_stopped_summary_have_used_is_counted_once_like_the_answer_before_it(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    last = Started(Reply("never said", stall_after=0))
    pieces = iter([Reply(error=ModelError("context_overflow")), Reply("a piece", usage=(50, 7)), last])

    def summary(request: Any) -> Any:
        piece = next(pieces)
        return piece(request) if callable(piece) else piece

    model = strict_model([Reply("answer " * 200, usage=(80, 5))], summary=summary, context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "question " * 200)
        await last.asked.wait()
        await engine.interrupt(chat.id)
        usage = (await engine.wait(chat.id)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.partial) == (130, 12, True)
    assert usage.compaction is not None
    assert (usage.compaction.input_tokens, usage.compaction.output_tokens) == (50, 7)


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


async def test_a_summary_is_not_made_anew_of_itself_alone(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """It would cost as much each time, and say less; what was said since is folded with it."""
    silent = Started(Reply(stall_after=0))
    model = strict_model(["noted", silent, "well", "good"], summary="they talked")
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "remember this")
        await engine.send_message(chat.id, "my question")
        await silent.asked.wait()
        await engine.interrupt(chat.id)
        for _ in range(3):
            await engine.wait(chat.id)
            await engine.request_compaction(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert await phases(engine, chat.id) == [*FULL, "started", "failed", "started", "failed"]
        seen = [("user", SUMMARY_PREFIX + "they talked"), ("user", "my question")]
        assert said(await engine.messages(chat.id, view="model")) == seen
        await engine.ask(chat.id, "and?")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id)
    assert [request.purpose for request in model.requests] == ["step", "step", "summary", "step", "summary"]


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
        await pass_time(clock, 90)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert (await seen(engine, chat.id, "compaction", phase="failed")).error.kind == "network"


@pytest.mark.parametrize(
    ("limit", "policy"),
    [
        (None, {}),
        (0, {}),
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
        states = [event.state for event in await events_of(engine, chat.id) if isinstance(event, StatusEvent)]
        assert states[-2:] == ["compacting", "requires_action"]
        await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])
        await engine.wait(chat.id)
        kept = [("user", "hello"), ("assistant", "both"), ("tool", "2 things"), ("tool", "yes")]
        assert step_requests(model)[1] == [SUMMARY, *kept]


async def test_a_compaction_among_the_results_of_a_step_changes_nothing_of_their_order(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """The result of the client's call comes behind the marker: for a person and for the model it is the first one."""
    calls = [Call("ask", {}, id="a"), Call("look", {}, id="l")]
    model = strict_model([Reply("both", calls=calls, usage=(80, 5)), Reply("done", usage=(20, 5))], context_limit=100)
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "hello")
        await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])
        await engine.wait(chat.id)
        results = [("tool", "yes"), ("tool", "2 things")]
        assert step_requests(model)[1][-2:] == results
        messages = await engine.messages(chat.id)
        (marker,) = (said([message])[0] for message in messages if message.role == "system")
        whole = [("user", "hello"), ("assistant", "both"), results[0], marker, results[1], ("assistant", "done")]
        assert said(messages) == whole
        assert said((await engine.transcript(chat.id)).messages) == whole
        await assert_told_right(engine, chat.id)
        raw = await engine.messages(chat.id, view="raw")
        assert said(raw) == [entry for entry in whole if entry != marker]


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
    budgets: list[CompactionInput] = []

    async def keep_results(messages: Sequence[Message], budget: CompactionInput) -> CompactionResult:
        budgets.append(budget)
        told = replace(messages[0], position=0, parts=messages[0].parts)
        return CompactionResult(messages=[told, *(message for message in messages if message.role == "tool")])

    model = strict_model(
        [Reply("see", calls=[Call("look", {})], usage=(80, 5)), Reply("done", usage=(20, 5))], context_limit=100
    )
    async with open_engine(model, settings=compacting(strategy=keep_results), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert budgets == [CompactionInput(context_tokens=80, context_limit=100, compactions=0)]
        assert step_requests(model)[1] == [("user", "hello"), ("assistant", "see"), ("tool", "2 things")]


async def test_a_strategy_that_folds_nothing_leaves_the_history_untouched(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    async def nothing(messages: Sequence[Message], budget: CompactionInput) -> None:
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


async def test_the_words_in_work_are_carried_until_an_answer_ends_their_turn(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """Neither a bare tool call nor words beside one is an answer, at the first compaction or at a later one."""
    over = Reply("looking", calls=[Call("look", {})], usage=(80, 5))
    fits = Reply("", calls=[Call("look", {})], usage=(20, 5))
    model = strict_model([over, fits, over, Reply("done", usage=(20, 5)), over, "done"], context_limit=100)
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "my very words")
        words = ("user", "my very words")
        requests = step_requests(model)
        assert requests[1] == [SUMMARY, words]
        assert requests[3] == [SUMMARY, words]
        await engine.ask(chat.id, "other words")
        assert step_requests(model)[-1] == [SUMMARY, ("user", "other words")]


@pytest.mark.parametrize("now", ["answering", "booking", "plain"])
@pytest.mark.parametrize("agent", ["answering", "booking"])
async def test_what_a_call_that_ends_its_turn_has_answered_is_folded(
    open_engine: OpenEngine, strict_model: MakeModel, agent: str, now: str
) -> None:
    """Else a chat whose turns all end so carries every message of its user for ever, and dies of that."""

    @tool(stop_after=True)
    async def book() -> str:
        """Book it."""
        return "booked"

    @tool(name="book", stop_after=False)
    async def look_at_books() -> str:
        """Look at it."""
        return "seen"

    calls = {"answering": Call("final_answer", {"answer": 7}), "booking": Call("book", {})}
    agents = [
        Agent("answering", strict_model(lambda _: Reply(calls=[calls["answering"]])), output=int),
        Agent("booking", strict_model(lambda _: Reply(calls=[calls["booking"]])), tools=[book]),
        Agent("plain", strict_model(["done"]), tools=[look_at_books]),
    ]
    async with open_engine(None, settings=compacting(), agents=agents) as engine:
        chat = await engine.create_chat(agent=agent)
        for question in ("one", "two"):
            assert (await engine.ask(chat.id, question)).stop_reason == "stop_after_tool"
        await engine.configure(chat.id, agent=now)
        await engine.request_compaction(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert said(await engine.messages(chat.id, view="model")) == [SUMMARY]


async def test_a_clients_call_ends_no_turn_although_its_agent_has_a_tool_of_that_name_which_does(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """A chat keeps what its client declares when it is given to another agent; and the question is still open."""

    @tool(stop_after=True)
    async def pick() -> str:
        """Pick one."""
        return "picked here"

    script = [Reply(calls=[Call("pick", {}, id="p")]), Reply(calls=[Call("look", {})], usage=(80, 5)), "done"]
    model = strict_model(script, context_limit=100)
    agents = [Agent("plain", strict_model([])), Agent("picking", model, tools=[pick, look])]
    async with open_engine(None, settings=compacting(), agents=agents) as engine:
        chat = await engine.create_chat(agent="plain", client_tools=[ClientTool("pick", "Pick.", {"type": "object"})])
        await engine.configure(chat.id, agent="picking")
        await engine.ask(chat.id, "my very words")
        await engine.submit_tool_results(chat.id, [ToolResult("p", "blue")])
        assert (await engine.wait(chat.id)).stop_reason == "end_turn"
        assert step_requests(model)[-1] == [SUMMARY, ("user", "my very words")]


async def test_a_summary_is_no_message_that_waits_for_an_answer(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """A second compaction folds the first one's summary, and carries each of the user's messages once."""
    over = Reply("", calls=[Call("look", {})], usage=(80, 5))
    fits = Reply("", calls=[Call("look", {})], usage=(20, 5))
    summaries = iter(["first", "second"])
    model = strict_model([over, fits, over, "done"], summary=lambda _: next(summaries), context_limit=100)
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert step_requests(model)[-1] == [("user", SUMMARY_PREFIX + "second"), ("user", "hello")]
        events = [event for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)]
        assert [(event.folded, event.carried) for event in events if event.phase == "stored"] == [(2, 1), (5, 1)]


async def test_a_partial_answer_is_no_answer(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """Messages of turns that were stopped are carried, too, until something has answered."""
    stopped = Started(Reply("half an answer", stall_after=1))
    over = Reply("", calls=[Call("look", {})], usage=(80, 5))
    model = strict_model(["hi", stopped, over, "done"], context_limit=100)
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "answered")
        await engine.send_message(chat.id, "stopped")
        await shown(engine, chat.id, "half an answer")
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        await engine.ask(chat.id, "go on")
        assert step_requests(model)[-1] == [SUMMARY, ("user", "stopped"), ("user", "go on")]


async def test_a_strategys_changes_order_and_roles_are_what_the_model_sees(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    async def clip(messages: Sequence[Message], budget: CompactionInput) -> CompactionResult:
        first, *rest = messages
        clipped = [
            replace(message, parts=(replace(message.parts[0], output="clipped"),))
            if message.role == "tool"
            else message
            for message in rest
        ]
        note = replace(first, position=0, role="assistant", parts=(TextPart(text="a note"),))
        return CompactionResult(messages=[first, note, *clipped])

    model = strict_model([Reply("", calls=[Call("look", {})], usage=(80, 5)), "done", "again"], context_limit=100)
    async with open_engine(model, settings=compacting(strategy=clip), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        expected = [("user", "hello"), ("assistant", "a note"), ("assistant", ""), ("tool", "clipped")]
        assert said((await engine.messages(chat.id, view="model"))[:-1]) == expected
        assert step_requests(model)[1] == expected
        assert ("tool", "2 things") in said(await engine.messages(chat.id))
        ledger = [(entry.purpose, entry.usage.partial) for entry in await engine.usage(chat.id)]
        assert ledger == [("step", False), ("summary", False), ("step", True)]
        await assert_told_right(engine, chat.id)


async def test_a_window_that_slides_needs_no_summary(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    async def last_two(messages: Sequence[Message], budget: CompactionInput) -> CompactionResult:
        return CompactionResult(messages=messages[-2:])

    async with open_engine(strict_model(["a", "b", "c"]), settings=compacting(strategy=last_two)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "A?")
        await engine.ask(chat.id, "B?")
        await engine.request_compaction(chat.id)
        assert (await engine.wait(chat.id)).usage.compaction is None
        assert await phases(engine, chat.id) == FULL
        await engine.ask(chat.id, "C?")
        expected = [("user", "B?"), ("assistant", "b"), ("user", "C?"), ("assistant", "c")]
        assert said(await engine.messages(chat.id, view="model")) == expected
        fork = await engine.fork(chat.id, at_version=(await engine.get_chat(chat.id)).version)
        assert said(await engine.messages(fork.id, view="model")) == expected


async def test_a_change_that_would_part_a_call_from_its_result_is_not_taken(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    async def forget_calls(messages: Sequence[Message], budget: CompactionInput) -> CompactionResult:
        return CompactionResult(
            messages=[
                replace(message, parts=(TextPart(text="I looked"),)) if message.calls else message
                for message in messages
            ]
            + [replace(messages[0], position=0, parts=(TextPart(text="note"),))]
        )

    model = strict_model([Reply("see", calls=[Call("look", {})], usage=(80, 5)), "done"], context_limit=100)
    async with open_engine(model, settings=compacting(strategy=forget_calls), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        kept = [("user", "hello"), ("assistant", "see"), ("tool", "2 things")]
        assert step_requests(model)[1] == [*kept, ("user", "note")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_service_may_decide_itself_when_to_compact(
    open_engine: OpenEngine, strict_model: MakeModel, *, is_async: bool
) -> None:
    asked: list[tuple[int, CompactionInput]] = []

    def third_message(messages: Sequence[Message], budget: CompactionInput) -> bool:
        asked.append((len(messages), budget))
        return len(messages) >= 3

    async def later(messages: Sequence[Message], budget: CompactionInput) -> bool:
        return third_message(messages, budget)

    model = strict_model([Reply("a", usage=(99, 1)), "b", "c"], context_limit=100)
    policy = {"should_compact": later if is_async else third_message, "after_final_step": "rest"}
    async with open_engine(model, settings=compacting(**policy)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "A?")
        assert await phases(engine, chat.id) == []
        await engine.ask(chat.id, "B?")
        assert await phases(engine, chat.id) == FULL
        assert asked[0] == (1, CompactionInput(context_tokens=99, context_limit=100, compactions=0))


async def test_a_rule_that_always_wants_a_compaction_or_fails_neither_loops_nor_fails_the_turn(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    def broken(messages: Sequence[Message], budget: CompactionInput) -> bool:
        raise LookupError("no rule")

    for rule, told in ((lambda *_: True, [*FULL, "unproductive"]), (broken, [])):
        model = strict_model(Reply("hi", usage=(10, 1)), context_limit=100)
        async with open_engine(model, settings=compacting(should_compact=rule)) as engine:
            chat = await engine.create_chat()
            assert (await engine.ask(chat.id, "hello")).chat.state == "waiting"
            assert await phases(engine, chat.id) == told


async def test_a_summary_is_asked_for_freely_and_prepared_like_every_request(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    """A choice of tools or a form of answers would spoil the summary; a secret must not leak by it."""
    contexts: list[RequestContext] = []

    def redact(messages: list[Message], context: RequestContext) -> list[Message]:
        contexts.append(context)
        return [replace(message, parts=(TextPart(text=message.text.replace("secret", "***")),)) for message in messages]

    parameters = {
        "temperature": 0.5,
        "tool_choice": "required",
        "parallel_tool_calls": True,
        "provider_options": {"service_tier": "flex", "extra_body": {"response_format": {"type": "json_object"}}},
    }
    model = strict_model(["hi"])
    settings = Settings(coalesce=0, parameters=parameters)
    async with open_engine(model, settings=settings, tools=[look], prepare_messages=redact) as engine:
        chat = await engine.create_chat(owner="ann", metadata={"a": 1})
        await engine.ask(chat.id, "my secret")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id)
        step, summary = model.requests
        assert step.parameters == parameters
        assert summary.parameters == {
            "temperature": 0.5,
            "provider_options": {"service_tier": "flex", "extra_body": {}},
        }
        assert said(summary.messages) == [("user", "my ***"), ("assistant", "hi"), ("user", SUMMARY_PROMPT)]
        assert [(context.purpose, context.step) for context in contexts] == [("step", 1), ("summary", 2)]
        assert {(context.chat_id, context.owner, context.metadata["a"]) for context in contexts} == {
            (chat.id, "ann", 1)
        }


async def test_a_model_that_calls_a_tool_for_a_summary_is_asked_again_without_tools(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    summaries = iter([Reply("", calls=[Call("look", {})], usage=(5, 1)), Reply("short", usage=(6, 1))])
    model = strict_model(["hi"], summary=lambda _: next(summaries))
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await engine.request_compaction(chat.id)
        usage = (await engine.wait(chat.id)).usage
        assert await phases(engine, chat.id) == FULL
        assert [request.parameters for request in model.requests[1:]] == [{}, {"tool_choice": "none"}]
        assert usage.compaction is not None
        assert usage.compaction.input_tokens == 11


@pytest.mark.parametrize(
    "hook",
    [lambda messages: None, lambda messages, context: None, lambda messages, strict=False: None],
)
async def test_a_hook_that_returns_nothing_changes_nothing(
    open_engine: OpenEngine, strict_model: MakeModel, hook: Any
) -> None:
    model = strict_model(["hi"])
    async with open_engine(model, settings=compacting(), prepare_messages=hook) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hello")).text == "hi"
        assert step_requests(model) == [[("user", "hello")]]


async def test_summaries_and_what_each_step_has_used_can_be_read(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    replies = [Reply("hi", usage=(80, 5)), Reply("go on", usage=(10, 2))]
    model = strict_model(replies, summary=Reply("summary", usage=(50, 20)), context_limit=100)
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat()
        assert (await engine.compactions(chat.id), await engine.usage(chat.id)) == ([], [])
        await engine.ask(chat.id, "hello")
        (made,) = await engine.compactions(chat.id)
        assert (made.step, made.summary, made.carried) == (1, SUMMARY[1], 0)
        assert made.usage is not None
        assert made.usage.input_tokens == 50
        assert said(made.messages) == [SUMMARY]
        entries = [
            (each.purpose, each.turn, each.step, each.usage.input_tokens) for each in await engine.usage(chat.id)
        ]
        assert entries == [("step", 1, 1, 80), ("summary", 1, 1, 50), ("step", 1, 2, 10)]
        for view in ("user", "raw"):
            assert SUMMARY not in said(await engine.messages(chat.id, view=view))


async def test_while_a_client_is_asked_no_request_to_go_on_is_shown(
    open_engine: OpenEngine, strict_model: MakeModel
) -> None:
    model = strict_model([Reply("", calls=[Call("ask", {}, id="a")]), "done"])
    async with open_engine(model, settings=compacting()) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "hello")
        assert said(await engine.messages(chat.id, view="model")) == [("user", "hello"), ("assistant", "")]
        await engine.submit_tool_results(chat.id, [ToolResult("a", "yes")])
        await engine.wait(chat.id)
        assert step_requests(model)[-1] == [("user", "hello"), ("assistant", ""), ("tool", "yes")]


@pytest.mark.parametrize("blank", [Reply(" \n"), Reply("\n", calls=[Call("look", {})]), Reply("", reasoning=" ")])
async def test_white_space_is_neither_stored_nor_sent(
    open_engine: OpenEngine, strict_model: MakeModel, blank: Reply
) -> None:
    model = strict_model([blank, "done"])
    async with open_engine(model, settings=compacting(), tools=[look]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        parts = [part for message in await engine.messages(chat.id) for part in message.parts]
        assert all(getattr(part, "text", "said").strip() for part in parts)
        await assert_told_right(engine, chat.id)


async def test_an_unknown_window_is_warned_of_once(
    open_engine: OpenEngine, strict_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_engine(strict_model("hi"), settings=compacting()) as engine:
        for _ in range(2):
            chat = await engine.create_chat()
            await engine.ask(chat.id, "hello")
    warned = [record for record in caplog.records if "context_window_unknown" in record.getMessage()]
    assert len(warned) == 1
    assert "scripted" in warned[0].getMessage()


@pytest.mark.parametrize(
    ("policy", "limit"), [({}, 400_000), ({"context_limit": 100}, 100), ({"threshold_percent": 100}, None)]
)
async def test_a_table_knows_windows_behind_what_is_configured(
    open_engine: OpenEngine, strict_model: MakeModel, policy: dict[str, Any], limit: int | None
) -> None:
    model = strict_model([Reply("hi", usage=(390_000, 1)), "go on"], name="gpt-5", provider="openai")
    async with open_engine(model, settings=compacting(**policy)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        told = {event.context_limit for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)}
        assert told - {None} == ({limit} if limit else set())
