"""The job that compacts: what may be folded, what a strategy and those who watch are told, and when it tries again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from support.engines import MakeModel, OpenEngine
from support.latches import Latch
from support.leased import leased_chat, streams
from support.life import NOW, client, said
from turnwise import (
    CompactionInput,
    CompactionPolicy,
    CompactionResult,
    Message,
    ModelError,
    Observer,
    RetryPolicy,
    Settings,
    Usage,
)
from turnwise.engine.jobs.compact import _fold, _to_summarise, can_fold
from turnwise.engine.observers.observer import CompactionRun
from turnwise.engine.settings import SUMMARY_PREFIX
from turnwise.engine.spending import Spending
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.facts import CompactionFacts
from turnwise.states.messages import FilePart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart


def message(position: int, role: Any = "user", *, step: int = 0, **fields: Any) -> Message:
    known: dict[str, Any] = {"parts": said(f"words {position}")}
    return Message(**known | fields, id=f"m{position}", role=role, turn=1, step=step, created_at=NOW, position=position)


def asks(position: int, step: int, *call_ids: str) -> Message:
    parts = tuple(ToolCallPart(call_id=call_id, name="ask", arguments={}) for call_id in call_ids)
    return message(position, "assistant", step=step, parts=parts)


def answers(position: int, step: int, call_id: str) -> Message:
    return message(position, "tool", step=step, parts=(ToolResultPart(call_id=call_id, name="ask", output="yes"),))


ASKED, ANSWERED = message(1), message(2, "assistant", step=1)
OPEN = {"calls": (client("a"), client("b"))}
"""The facts of a chat with calls that the client has not answered yet; they are of its third step."""


@pytest.mark.parametrize(
    ("history", "facts", "foldable"),
    [
        ([], {}, False),
        ([ASKED], {}, False),
        ([ASKED, ANSWERED], {}, True),
        ([ASKED, ANSWERED, message(3)], {}, True),
        ([ASKED, asks(3, 3, "a", "b"), answers(4, 3, "b")], OPEN, False),
        ([ASKED, asks(3, 3, "a", "b"), answers(4, 3, "b")], {}, True),
        ([ASKED, asks(3, 2, "a", "b"), answers(4, 2, "b")], OPEN, True),
        ([ASKED, message(2, step=3)], OPEN, True),
    ],
)
async def test_open_messages_and_client_steps_are_not_folded(
    history: list[Message], facts: dict[str, Any], *, foldable: bool
) -> None:
    leased, _ = leased_chat(history, facts=streams(**facts))
    assert await can_fold(leased) is foldable


@pytest.mark.parametrize(
    ("sendable", "kept", "facts", "summarised"),
    [
        ([ASKED, ANSWERED, message(3)], {3}, {}, [1, 2]),
        ([ASKED, ANSWERED, message(3), message(4, "assistant", step=2), message(5)], {3, 5}, {}, [1, 2, 3, 4]),
        ([ASKED, ANSWERED], set(), {}, [1, 2]),
        ([ASKED], {1}, {}, []),
        ([], set(), {}, []),
        ([ASKED, ANSWERED, message(3), asks(4, 3, "a"), answers(5, 3, "a")], {3, 4, 5}, OPEN, [1, 2]),
        ([ASKED, asks(4, 3, "a", "b"), answers(5, 3, "b")], {1, 4, 5}, OPEN, [1]),
        ([asks(4, 3, "a"), message(5)], {4, 5}, OPEN, [5]),
        ([asks(4, 3, "a"), message(5)], {4}, OPEN, [5]),
        ([ASKED, asks(4, 3, "a")], {1, 4}, {}, []),
    ],
)
def test_summary_covers_folded_messages_only(
    sendable: list[Message], kept: set[int], facts: dict[str, Any], summarised: list[int]
) -> None:
    leased, _ = leased_chat(sendable, facts=streams(**facts))
    assert [one.position for one in _to_summarise(leased, sendable, sendable, kept)] == summarised


HISTORY = [ASKED, ANSWERED, message(3)]


class Notes(Observer):
    """Notes the compactions."""

    def __init__(self) -> None:
        self.runs: list[CompactionRun] = []

    def compaction_started(self, run: CompactionRun) -> Callable[[], None]:
        return lambda: self.runs.append(run)


def by(strategy: Any) -> Settings:
    return Settings(compaction=CompactionPolicy(strategy=strategy))


async def test_strategy_gets_figures_and_reports_usage() -> None:
    told: list[Any] = []

    async def strategy(messages: Sequence[Message], figures: CompactionInput) -> CompactionResult:
        told.append((messages, figures))
        return CompactionResult(messages=messages[2:], usage=Usage(input_tokens=3))

    known = CompactionFacts(context_tokens=90, context_limit=100, count=4)
    leased, _ = leased_chat(HISTORY, facts=streams(compaction=known), settings=by(strategy))
    spending = Spending()
    summary = await _fold(leased, spending)
    assert (summary.messages, summary.folded) == ((3,), 2)
    assert told == [(HISTORY, CompactionInput(context_tokens=90, context_limit=100, compactions=4))]
    assert spending.usage == Usage(input_tokens=3)


async def test_sync_strategy_without_usage() -> None:
    def strategy(messages: list[Message], _figures: CompactionInput) -> CompactionResult:
        return CompactionResult(messages=messages[2:])

    leased, _ = leased_chat(HISTORY, settings=by(strategy))
    spending = Spending()
    await _fold(leased, spending)
    assert spending.usage is None


@pytest.mark.parametrize(
    ("result", "kind", "words"),
    [
        (None, "bad_request", "nothing was folded"),
        (OSError("no disk"), "bad_request", "the compaction failed: OSError: no disk"),
        (ModelError("quota", message="no money"), "quota", "no money"),
        (CompactionResult(messages=HISTORY), "bad_request", "nothing was folded"),
        ([], "bad_request", "the strategy returned 'list'; it has to return a CompactionResult, or None"),
    ],
    ids=str,
)
async def test_strategy_failure_keeps_its_reason(result: Any, kind: str, words: str) -> None:
    async def strategy(_messages: Sequence[Message], _figures: CompactionInput) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    leased, _ = leased_chat(HISTORY, settings=by(strategy))
    with pytest.raises(ModelError, match=words) as failed:
        await _fold(leased, Spending())
    assert failed.value.kind == kind


async def test_model_summary_precedes_kept_messages() -> None:
    leased, _ = leased_chat(HISTORY, model=ScriptedModel([], summary="In short."))
    spending = Spending()
    summary = await _fold(leased, spending)
    new, kept = summary.messages
    assert isinstance(new, Message)
    assert (new.role, new.text, kept, summary.folded) == ("user", SUMMARY_PREFIX + "In short.", 3, 2)
    assert (new.turn, new.step) == (HISTORY[-1].turn, HISTORY[-1].step), "it belongs to where the chat stands"
    assert spending.usage == Usage(partial=True)


TOO_LONG = Reply(error=ModelError("context_overflow", message="too long"))
BUSY = Reply(error=ModelError("overloaded", message="é" * 400))
POOR = Reply(error=ModelError("quota"))


@pytest.mark.parametrize(
    ("summaries", "asked", "state", "error"),
    [
        ([BUSY, BUSY, "In short."], 3, "waiting", None),
        ([BUSY, BUSY, BUSY, "In short."], 3, "error", "overloaded"),
        ([POOR, "In short."], 1, "error", "quota"),
        (["In short."], 1, "waiting", None),
    ],
)
async def test_summary_after_overflow_is_retried(
    open_engine: OpenEngine, strict_model: MakeModel, summaries: list[Any], asked: int, state: str, error: str | None
) -> None:
    lines = iter(summaries)
    model = strict_model(["hi", TOO_LONG, "done"], summary=lambda _: next(lines))
    settings = Settings(coalesce=0, output_limit_bytes=100, retry=RetryPolicy(attempts=3, first_delay=0.001))
    notes = Notes()
    async with open_engine(model, settings=settings, observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        result = await engine.ask(chat.id, "again")
        spent = [(entry.purpose, entry.attempt) for entry in await engine.usage(chat.id) if entry.purpose == "summary"]
        failed = [event.error async for event in engine.events(chat.id, follow=False) if _has_failed(event)]
    assert (result.chat.state, sum(request.purpose == "summary" for request in model.requests)) == (state, asked)
    assert [one.kind for one in failed] == ([error] if error is not None else [])
    assert all(len(one.message.encode()) < 200 for one in failed)
    assert len(spent) == asked, "a summary that failed was paid for, too"
    assert [(run.strategy, run.messages_before) for run in notes.runs] == [("summary", 3)] * asked
    assert notes.runs[-1].messages_after == (2 if error is None else None)


async def test_requested_summary_is_tried_once(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(["hi"], summary=BUSY)
    settings = Settings(coalesce=0, output_limit_bytes=100, retry=RetryPolicy(attempts=3, first_delay=0.001))
    async with open_engine(model, settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id)
        (entry,) = [entry for entry in await engine.usage(chat.id) if entry.purpose == "summary"]
        (failed,) = [event.error async for event in engine.events(chat.id, follow=False) if _has_failed(event)]
    assert entry.usage.partial
    assert [request.purpose for request in model.requests] == ["step", "summary"]
    assert failed.kind == "overloaded"
    assert len(failed.message.encode()) < 200


def whole(**fields: Any) -> Callable[[Message], Message]:
    """Return what makes one new message of another, with these fields."""
    return lambda known: replace(known, position=0, **fields)


@pytest.mark.parametrize(
    "made",
    [
        whole(parts=said("half a \ud800")),
        whole(role="nobody"),
        whole(parts=("text",)),
        whole(parts=(ToolResultPart(call_id="a", name="ask", output={"a": float("nan")}),)),
        whole(parts=(replace(TextPart(text="so"), metadata=[1]),)),
        whole(parts=(TextPart(text="so"), replace(ReasoningPart(text="hm"), signature=5))),
        whole(parts=(replace(FilePart(media_type="a/b", data="aGk="), media_type=object()),)),
        lambda known: replace(known, parts=(replace(TextPart(text="so"), metadata=[1]),)),
    ],
    ids=["half a character", "no role", "no part", "no JSON", "a list", "a number", "an object", "a changed message"],
)
async def test_unstorable_summary_fails_the_compaction(
    open_engine: OpenEngine, made: Callable[[Message], Message]
) -> None:
    async def strategy(messages: Sequence[Message], _figures: CompactionInput) -> CompactionResult:
        return CompactionResult(messages=[made(messages[0])], usage=Usage(input_tokens=3))

    model = ScriptedModel(["hi", Reply("again", usage=(90, 1))], context_limit=100)
    async with open_engine(model, settings=by(strategy)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        result = await engine.ask(chat.id, "go on")
        (failed,) = [event.error async for event in engine.events(chat.id, follow=False) if _has_failed(event)]
        assert (await engine.verify(chat.id)).ok
    assert (result.text, result.chat.state, result.chat.last_error) == ("again", "waiting", None)
    assert "the summary cannot be stored" in failed.message
    assert result.usage.compaction.input_tokens == 3, "it was paid for"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_erasure_discards_running_summary(open_engine: OpenEngine, where: str) -> None:
    """It would say again what is gone, and no erasure could name it: it was not there yet."""
    latch, folded = Latch(), list[str]()

    async def strategy(messages: Sequence[Message], _figures: CompactionInput) -> CompactionResult:
        folded.append(" ".join(one.text for one in messages))
        await latch.pass_through()
        return CompactionResult(messages=[whole(parts=said(folded[-1]))(messages[0])], usage=Usage(input_tokens=3))

    model = ScriptedModel(["noted"], context_limit=100)
    async with (
        open_engine(model, settings=by(strategy)) as engine,
        open_engine(model, settings=Settings(run_worker=False)) as other,
    ):
        chat = await engine.create_chat()
        first = (await engine.ask(chat.id, "a secret")).messages[0]
        await engine.request_compaction(chat.id)
        await latch.entered.wait()
        report = await (engine if where == "here" else other).erase(chat.id, messages=[first.id])
        latch.open()
        rested = await engine.wait(chat.id)
        (summary,) = await engine.messages(chat.id, view="model")
        entries = [entry.usage for entry in await engine.usage(chat.id) if entry.purpose == "summary"]
        assert (await engine.verify(chat.id)).ok
    assert (report.chat.state, report.may_quote, rested.state) == ("compacting", (), "waiting")
    assert ["secret" in text for text in folded] == [True, False]
    assert "secret" not in summary.text
    assert [usage.input_tokens for usage in entries] == [6]


async def test_erased_system_prompt_discards_running_summary(
    open_engine: OpenEngine,
) -> None:
    """A model that summarises is told the system prompt, and may repeat it."""
    latch = Latch()

    class Summarises(ScriptedModel):
        async def generate(self, request: ModelRequest) -> ModelReply:
            await latch.pass_through()
            return await super().generate(request)

    model = Summarises(["noted"], summary=lambda request: f"told to be {request.system}")
    async with open_engine(model) as engine:
        chat = await engine.create_chat(system="secret")
        await engine.ask(chat.id, "hello")
        await engine.request_compaction(chat.id)
        await latch.entered.wait()
        report = await engine.erase(chat.id, what=["system"])
        latch.open()
        await engine.wait(chat.id)
        (summary,) = await engine.messages(chat.id, view="model")
        assert (await engine.verify(chat.id)).ok
    assert report.may_quote == ()
    asked = [(request.purpose, request.system) for request in model.requests]
    assert asked == [("step", "secret"), ("summary", "secret"), ("summary", None)]
    assert "secret" not in summary.text


async def test_half_character_in_summary_is_replaced() -> None:
    class Halves(ScriptedModel):
        async def generate(self, request: ModelRequest) -> ModelReply:
            return ModelReply(parts=said("half a \ud800"), finish=ModelPart("finish"))

    leased, _ = leased_chat(HISTORY, model=Halves([]))
    summary = await _fold(leased, Spending())
    assert [one.text for one in summary.messages if isinstance(one, Message)] == [SUMMARY_PREFIX + "half a \ufffd"]


def _has_failed(event: Any) -> bool:
    return bool(event.kind == "compaction" and event.phase == "failed")
