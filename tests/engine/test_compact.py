"""The compaction job: messages that may be folded, the input of strategies, retries, and the trigger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.engine.leased import leased_chat, streams

from support.engines import MakeModel, OpenEngine
from support.latches import Latch
from support.life import NOW, client, text_parts
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
from turnwise.engine.jobs.compact import CompactionJob
from turnwise.engine.jobs.context_window import CompactionRule
from turnwise.engine.observers.observer import CompactionRun
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.arguments import StepReply
from turnwise.states.messages import TextPart, ToolCallPart, ToolResultPart


def message(position: int, role: Any = "user", *, step: int = 0, **fields: Any) -> Message:
    known: dict[str, Any] = {"parts": text_parts(f"words {position}")}
    return Message(**known | fields, id=f"m{position}", role=role, turn=1, step=step, created_at=NOW, position=position)


def asks(position: int, step: int, *call_ids: str) -> Message:
    parts = tuple(ToolCallPart(call_id=call_id, name="ask", arguments={}) for call_id in call_ids)
    return message(position, "assistant", step=step, parts=parts)


def answers(position: int, step: int, call_id: str) -> Message:
    return message(position, "tool", step=step, parts=(ToolResultPart(call_id=call_id, name="ask", output="yes"),))


ASKED, ANSWERED = message(1), message(2, "assistant", step=1)
HISTORY = [ASKED, ANSWERED, message(3)]
OPEN = {"calls": (client("a"), client("b"))}
"""The facts of a chat with open client calls in its third step."""


@pytest.mark.parametrize(
    ("history", "facts", "foldable"),
    [
        ([ASKED], {}, False),
        ([ASKED, ANSWERED], {}, True),
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
    assert await CompactionJob(leased).can_fold() is foldable


@pytest.mark.parametrize(
    ("sendable", "stored", "facts", "summarised"),
    [
        ([ASKED, ANSWERED, message(3)], {3}, {}, [1, 2]),
        ([ASKED, ANSWERED, message(3), message(4, "assistant", step=2), message(5)], {3, 5}, {}, [1, 2, 3, 4]),
        ([ASKED, ANSWERED], set(), {}, [1, 2]),
        ([ASKED], {1}, {}, []),
        ([ASKED, ANSWERED, message(3), asks(4, 3, "a"), answers(5, 3, "a")], {3, 4, 5}, OPEN, [1, 2]),
        ([ASKED, asks(4, 3, "a", "b"), answers(5, 3, "b")], {1, 4, 5}, OPEN, [1]),
        ([asks(4, 3, "a"), message(5)], {4, 5}, OPEN, [5]),
        ([ASKED, asks(4, 3, "a")], {1, 4}, {}, []),
    ],
)
def test_summary_covers_folded_messages_only(
    sendable: list[Message], stored: set[int], facts: dict[str, Any], summarised: list[int]
) -> None:
    leased, _ = leased_chat(sendable, facts=streams(**facts))
    assert [one.position for one in CompactionJob(leased)._to_summarise(sendable, sendable, stored)] == summarised


class Notes(Observer):
    """Records the compactions."""

    def __init__(self) -> None:
        self.runs: list[CompactionRun] = []

    def compaction_started(self, run: CompactionRun) -> Callable[[], None]:
        return lambda: self.runs.append(run)


def by(strategy: Any) -> Settings:
    return Settings(compaction=CompactionPolicy(strategy=strategy))


@pytest.mark.parametrize(
    ("result", "kind", "words"),
    [
        (None, "nothing_folded", "nothing was folded"),
        (OSError("no disk"), "internal", "OSError: no disk"),
        (ModelError("quota", message="no money"), "quota", "no money"),
        (CompactionResult(messages=HISTORY), "nothing_folded", "nothing was folded"),
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
        await CompactionJob(leased)._fold()
    assert failed.value.kind == kind


TOO_LONG = Reply(error=ModelError("context_overflow", message="too long"))
BUSY = Reply(error=ModelError("overloaded", message="é" * 400))
POOR = Reply(error=ModelError("quota"))


@pytest.mark.parametrize(
    ("summaries", "requests", "state", "error"),
    [
        ([BUSY, BUSY, "In short."], 3, "waiting", None),
        ([BUSY, BUSY, BUSY, "In short."], 3, "error", "overloaded"),
        ([POOR, "In short."], 1, "error", "quota"),
        (["In short."], 1, "waiting", None),
    ],
)
async def test_summary_after_overflow_is_retried(
    open_engine: OpenEngine, strict_model: MakeModel, summaries: list[Any], requests: int, state: str, error: str | None
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
    assert (result.chat.state, sum(request.purpose == "summary" for request in model.requests)) == (state, requests)
    assert [one.kind for one in failed] == ([error] if error is not None else [])
    assert all(len(one.message.encode()) < 200 for one in failed)
    assert len(spent) == requests, "a summary that failed was paid for, too"
    assert [(run.strategy, run.messages_before) for run in notes.runs] == [("summary", 3)] * requests
    assert notes.runs[-1].messages_after == (2 if error is None else None)


@pytest.mark.parametrize(
    "change",
    [
        {"position": 0, "parts": text_parts("half a \ud800")},
        {"position": 0, "parts": (ToolResultPart(call_id="a", name="ask", output={"a": float("nan")}),)},
        {"parts": (replace(TextPart(text="so"), metadata=[1]),)},
    ],
    ids=["half a character", "no JSON", "a changed message"],
)
async def test_unstorable_summary_fails_the_compaction(
    open_engine: OpenEngine, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def strategy(messages: Sequence[Message], _figures: CompactionInput) -> CompactionResult:
        return CompactionResult(messages=[replace(messages[0], **change)], usage=Usage(input_tokens=3))

    model = ScriptedModel(["hi", Reply("again", usage=(90, 1))], context_limit=100)
    async with open_engine(model, settings=by(strategy)) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        result = await engine.ask(chat.id, "go on")
        (failed,) = [event.error async for event in engine.events(chat.id, follow=False) if _has_failed(event)]
        assert (await engine.verify(chat.id)).ok
    assert (result.text, result.chat.state, result.chat.last_error) == ("again", "waiting", None)
    assert failed.kind == "bad_request"
    assert "the summary cannot be stored" in caplog.text
    assert result.usage.compaction.input_tokens == 3, "it was paid for"


@pytest.mark.parametrize("where", ["here", pytest.param("elsewhere", marks=pytest.mark.deep)])
async def test_erasure_discards_running_summary(open_engine: OpenEngine, where: str) -> None:
    """The summary would repeat erased content, and no erasure could name a summary that did not exist yet."""
    latch, folded = Latch(), list[str]()

    async def strategy(messages: Sequence[Message], _figures: CompactionInput) -> CompactionResult:
        folded.append(" ".join(one.text for one in messages))
        await latch.pass_through()
        summary = replace(messages[0], position=0, parts=text_parts(folded[-1]))
        return CompactionResult(messages=[summary], usage=Usage(input_tokens=3))

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
        resting = await engine.wait(chat.id)
        (summary,) = await engine.messages(chat.id, view="model")
        entries = [entry.usage for entry in await engine.usage(chat.id) if entry.purpose == "summary"]
        assert (await engine.verify(chat.id)).ok
    assert (report.chat.state, report.may_quote, resting.state) == ("compacting", (), "waiting")
    assert ["secret" in text for text in folded] == [True, False]
    assert "secret" not in summary.text
    assert [usage.input_tokens for usage in entries] == [6]


async def test_interrupt_discards_running_summary(open_engine: OpenEngine) -> None:
    """The commit finds the chat interrupted, even if the worker learns of it late."""

    async def strategy(messages: Sequence[Message], _figures: CompactionInput) -> CompactionResult:
        await other.interrupt(chat.id)
        return CompactionResult(messages=messages[1:])

    model = ScriptedModel(["noted"], context_limit=100)
    async with (
        open_engine(model, settings=by(strategy)) as engine,
        open_engine(model, settings=Settings(run_worker=False)) as other,
    ):
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        await engine.request_compaction(chat.id)
        stopped = await engine.wait(chat.id)
        assert (stopped.state, stopped.settled) == ("interrupted", True)
        assert await engine.compactions(chat.id) == []
        assert (await engine.verify(chat.id)).ok


def _has_failed(event: Any) -> bool:
    return bool(event.kind == "compaction" and event.phase == "failed")


# An own rule, and the context limit


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("answer", "off", "due"),
    [
        (True, {}, True),
        (0, {}, False),
        (LookupError("no rule"), {}, False),
        (True, {"threshold_percent": 100}, None),
        (True, {"context_limit": 0}, None),
    ],
    ids=["yes", "no", "fails", "off", "no limit"],
)
async def test_should_compact_decides(
    caplog: pytest.LogCaptureFixture, answer: Any, off: dict[str, int], *, due: bool | None, is_async: bool
) -> None:
    """With compaction off the rule is not called; an error in it is logged, and the reply is stored."""

    def rule(_messages: Sequence[Message], _figures: CompactionInput) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def later(messages: Sequence[Message], figures: CompactionInput) -> Any:
        return rule(messages, figures)

    policy = CompactionPolicy(should_compact=later if is_async else rule, **off)
    leased, _ = leased_chat(HISTORY, settings=Settings(compaction=policy))
    reply = await CompactionRule(leased).judge(StepReply(parts=text_parts("hello"), context_tokens=5))
    assert (reply.parts, reply.context_tokens, reply.should_compact) == (text_parts("hello"), 5, due)
    lines = [record for record in caplog.records if "should_compact_failed" in record.getMessage()]
    assert ["step=3" in line.getMessage() and bool(line.exc_info) for line in lines] == [True] * (
        isinstance(answer, Exception)
    )
