"""The job that streams a step: what it makes of a reply's end, what it shows, and when it tries no more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of
from support.latches import Latch
from support.leased import leased_chat
from support.life import NOW, said
from turnwise import (
    CompactionPolicy,
    Message,
    ModelCall,
    ModelError,
    ModelPart,
    ModelRequest,
    Observer,
    RetryPolicy,
    Settings,
    Usage,
    tool,
)
from turnwise.engine.held_attempt import HeldAttempt
from turnwise.engine.jobs.stream_step import Attempt
from turnwise.engine.prompt.hooks import Hooks
from turnwise.engine.prompt.stored_history import StoredHistory
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import StoreError
from turnwise.states.events import CompactionEvent, ErrorEvent, PartEvent, TurnFinishedEvent
from turnwise.states.facts import MOST_LOST
from turnwise.states.names import ChatState, StopReason
from turnwise.testing import ManualClock

QUICK = Settings(coalesce=0)
LATER = Settings(coalesce=3600)
"""Of an engine that shows no part before a reply has ended."""


class Calls(Observer):
    """Notes the calls of models."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []

    def model_called(self, call: ModelCall) -> Callable[[], None]:
        return lambda: self.calls.append(call)


def finished(**fields: Any) -> Reply:
    return Reply(parts=[ModelPart("text_delta", text="well"), ModelPart("finish", **fields)])


async def test_cancelled_job_does_not_call_the_model() -> None:
    """By then the chat may be in the hands of another job, which asks for that same attempt."""
    scope = anyio.CancelScope()

    async def prepare(_messages: list[Message]) -> None:
        asyncio.get_running_loop().call_soon(scope.cancel)  # comes before the job hears that this has returned

    model = ScriptedModel(["well"])
    leased, _ = leased_chat([message("hi")], model=model, hooks=Hooks(prepare_messages=prepare))
    with scope:
        await Attempt(leased, HeldAttempt(step=3, attempt=2)).run()
    assert scope.cancelled_caught
    await anyio.wait_all_tasks_blocked()
    assert model.requests == []


async def test_store_error_is_no_model_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model's code waits for it, but the chat ends for what the store says; one that is away is waited for."""
    refusal = StoreError("refused")

    async def has_call(*_: object) -> bool:
        raise refusal

    leased, _ = leased_chat([message("hi")], model=ScriptedModel([Reply(calls=[Call("look", {})])]))
    monkeypatch.setattr(StoredHistory, "has_call", has_call)
    with pytest.raises(StoreError) as raised:
        await Attempt(leased, HeldAttempt(step=3, attempt=2)).run()
    assert raised.value is refusal


def message(text: str) -> Message:
    return Message(id="m", role="user", parts=said(text), turn=1, step=0, created_at=NOW, position=1)


# What a reply's end says


@pytest.mark.parametrize(
    "odd",
    [
        ModelPart("text_delta", text={"a": 1}),
        ModelPart("tool_call", id=5, name="look", arguments={}),
        ModelPart("tool_call", name=["look"], arguments={}),
    ],
    ids=["a text", "an id", "a name"],
)
async def test_malformed_part_costs_one_attempt(open_engine: OpenEngine, odd: ModelPart) -> None:
    settings = Settings(retry=RetryPolicy(first_delay=0.001, max_delay=0.001))
    model = ScriptedModel([Reply(parts=[odd]), "well"])
    async with open_engine(model, settings=settings) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "Hello?")
    assert (result.text, result.chat.state, len(model.requests)) == ("well", "waiting", 2)


@pytest.mark.parametrize(
    ("reason", "word"), [(5, "5"), (True, "True"), ({"a": 1}, "{'a': 1}"), ("\ud800", "\ufffd"), (None, None)]
)
async def test_provider_reason_is_stored_as_text(open_engine: OpenEngine, reason: Any, word: str | None) -> None:
    async with open_engine(ScriptedModel([finished(metadata={"reason": reason}), "more"])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "Hello?")
        (end,) = [event for event in await events_of(engine, chat.id) if isinstance(event, TurnFinishedEvent)]
        assert (await engine.ask(chat.id, "And?")).text == "more", "the chat can be read"
    assert end.provider_reason == word


@pytest.mark.parametrize(
    ("word", "reason", "own"),
    [
        ("length", StopReason.max_tokens, {"reason": "OWN"}),
        ("max_tokens", StopReason.max_tokens, None),
        ("content_filter", StopReason.content_filter, {"reason": "OWN"}),
        ("refusal", StopReason.content_filter, None),
        ("stop", StopReason.end_turn, {"response_id": "r"}),
        ("anything else", StopReason.end_turn, {"reason": "OWN"}),
        (None, StopReason.end_turn, None),
    ],
)
async def test_stop_reason_follows_provider_reason(
    open_engine: OpenEngine, strict_model: MakeModel, word: str | None, reason: StopReason, own: dict[str, Any] | None
) -> None:
    model = strict_model([finished(stop_reason=word, metadata=own)])
    async with open_engine(model, settings=QUICK) as engine:
        chat = await engine.create_chat()
        answer = (await engine.ask(chat.id, "hi")).messages[-1]
        (end,) = await events_of(engine, chat.id, "turn_finished")
    assert isinstance(end, TurnFinishedEvent)
    assert (end.stop_reason, end.provider_reason) == (reason, (own or {}).get("reason", word))
    assert answer.finish_reason == (own or {}).get("reason", word)


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"response_id": "r-7"}, "r-7"),
        ({"response_id": "r\ud800"}, "r\ufffd"),
        ({"response_id": 7}, None),
        ({"other": "r-7"}, None),
        (None, None),
    ],
)
async def test_response_id_is_kept_if_it_is_text(
    open_engine: OpenEngine, strict_model: MakeModel, metadata: dict[str, Any] | None, told: str | None
) -> None:
    model = strict_model([finished(metadata=metadata)])
    async with open_engine(model, settings=QUICK) as engine:
        chat = await engine.create_chat()
        answer = (await engine.ask(chat.id, "hi")).messages[-1]
    assert (answer.response_id, answer.model, answer.provider) == (told, model.name, model.provider)


@pytest.mark.parametrize(
    ("finish", "system", "known"),
    [
        ({"usage": Usage(input_tokens=12, output_tokens=1), "context_limit": 1000}, None, (12, 1000, False)),
        ({"usage": Usage(input_tokens=0), "context_limit": 1000}, None, (0, 1000, False)),
        ({"usage": Usage(output_tokens=5), "context_limit": 1000}, None, (30, 1000, True)),
        ({"usage": Usage(input_tokens=90), "metadata": {"context_tokens": 40}}, None, (40, 2000, False)),
        ({"usage": Usage(input_tokens=90), "metadata": {"context_tokens": None}}, None, (30, 2000, True)),
        ({"usage": Usage(input_tokens=90), "metadata": {"context_tokens": "4"}}, None, (30, 2000, True)),
        ({"context_limit": 1000}, None, (30, 1000, True)),
        ({"context_limit": 1000}, "s" * 40, (40, 1000, True)),
        ({"context_limit": 5000}, "s" * 40, (40, 2000, True)),
        ({"context_limit": 0}, None, (30, 0, True)),
        ({"context_limit": 1500.0}, None, (30, 1500, True)),
        ({"context_limit": 1000 / 3}, None, (30, 2000, True)),
        ({"context_limit": True}, None, (30, 2000, True)),
    ],
)
async def test_context_tokens_are_reported_or_estimated(
    open_engine: OpenEngine,
    strict_model: MakeModel,
    finish: dict[str, Any],
    system: str | None,
    known: tuple[int, int, bool],
) -> None:
    policy = CompactionPolicy(model=ScriptedModel([], context_limit=2000), threshold_percent=100)
    model = strict_model([finished(**finish)])
    async with open_engine(model, settings=Settings(coalesce=0, compaction=policy)) as engine:
        chat = await engine.create_chat(system=system)
        result = await engine.ask(chat.id, "u" * 120)
        found = (await engine._store.facts(chat.id)).compaction
        spent = [entry.usage for entry in await engine.usage(chat.id)]
    assert (found.context_tokens, found.context_limit, found.estimated) == known
    assert result.usage == spent[0] == finish.get("usage", Usage(partial=True))


@tool
async def look(at: int) -> str:
    """Look."""
    return f"seen {at}"


@pytest.mark.parametrize("given", ['{"at": "3"}', {"at": "3"}, {"at": 3}])
async def test_arguments_are_stored_in_the_tools_types(
    open_engine: OpenEngine, strict_model: MakeModel, given: Any
) -> None:
    model = strict_model([Reply("so", calls=[Call("look", given)]), "done"])
    async with open_engine(model, settings=QUICK, tools=[look]) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hi")
    answer = result.messages[1]
    assert (answer.text, [call.arguments for call in answer.calls]) == ("so", [{"at": 3}])
    assert result.messages[2].result is not None
    assert result.messages[2].result.output == "seen 3"


async def test_tool_gets_arguments_as_stored(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    got: list[Any] = []

    @tool(name="plan", description="Plan.", schema={"type": "object"})
    def plan(**given: Any) -> str:
        got.append(given)
        return "planned"

    given = {"days": ("mon", {"tue"}), "on": datetime(2026, 1, 1, tzinfo=UTC), "far": float("inf")}
    as_read = {"days": ["mon", ["tue"]], "on": "2026-01-01T00:00:00Z", "far": "inf"}
    call = ModelPart("tool_call", id="c", name="plan", arguments=given)
    model = strict_model([Reply(parts=[call, ModelPart("finish", stop_reason="end_turn")]), "done"])
    async with open_engine(model, settings=QUICK, tools=[plan]) as engine:
        chat = await engine.create_chat()
        live = [event async for event in engine.stream(chat.id, "hi")]
        assert live == [event async for event in engine.events(chat.id, after=live[0].seq - 1, follow=False)]
        calls = [call.arguments for message in await engine.messages(chat.id) for call in message.calls]
    assert calls == got == [as_read]


# What is shown


@pytest.mark.parametrize("settings", [QUICK, LATER], ids=["at once", "with the end"])
@pytest.mark.parametrize("end", ["whole", "failed"])
async def test_all_text_is_shown_by_the_end_of_a_reply(
    open_engine: OpenEngine, strict_model: MakeModel, settings: Settings, end: str
) -> None:
    chunks = ["one ", "two ", "three"]
    broken = {"error": ModelError("bad_request", message="no more"), "error_after": 3} if end == "failed" else {}
    model = strict_model([Reply("".join(chunks), chunks=chunks, **broken)])
    async with open_engine(model, settings=settings) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hi")
        parts = [event for event in await events_of(engine, chat.id) if isinstance(event, PartEvent)]
        assert "".join(event.part.delta or "" for event in parts) == "one two three"
        assert result.messages[-1].text == "one two three"
        assert result.messages[-1].partial == (end == "failed")
        assert result.stop_reason == ("error" if end == "failed" else "end_turn")
        await assert_told_right(engine, chat.id)


async def test_failed_reply_keeps_origin_and_usage(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    parts = [ModelPart("text_delta", text="half"), ModelPart("usage", usage=Usage(input_tokens=7))]
    error = ModelError("bad_request", message="é" * 400, status=400)
    model = strict_model([Reply(parts=parts, error=error, error_after=2)])
    settings = Settings(coalesce=0, output_limit_bytes=100)
    async with open_engine(model, settings=settings) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hi")
        (spent,) = await engine.usage(chat.id)
    answer, told = result.messages[-1], result.chat.last_error
    assert (answer.text, answer.partial, answer.model) == ("half", True, model.name)
    assert (spent.usage.input_tokens, result.usage.input_tokens) == (7, 7)
    assert told is not None
    assert (told.kind, told.status, told.step, told.attempt) == ("bad_request", 400, 1, 1)
    assert len(told.message.encode()) < 200


class Breathless(ScriptedModel):
    """Makes its words itself, as a model in this process does, and never lets the event loop go on."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        for _ in range(200):
            _compute()
            yield ModelPart("text_delta", text="word ")
        yield ModelPart("finish", stop_reason=StopReason.end_turn)


def _compute() -> None:
    time.sleep(0.01)


async def test_model_that_never_waits_can_be_interrupted(open_engine: OpenEngine) -> None:
    async with open_engine(Breathless([]), settings=QUICK) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        async for event in engine.events(chat.id):
            if isinstance(event, PartEvent):
                break
        await engine.interrupt(chat.id)
        stopped = await engine.wait(chat.id)
        (_, answer) = await engine.messages(chat.id)
    assert stopped.state is ChatState.interrupted
    assert answer.partial
    assert 0 < answer.text.count("word") < 200


# Those who watch


async def test_observer_sees_each_model_call(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    calls, clock = Calls(), ManualClock()

    async def pass_time(seconds: float) -> None:
        clock.advance(seconds)

    model = strict_model(
        [
            Reply("never", error=ModelError("bad_request")),
            Reply("half", chunks=2, first_delay=3, error=ModelError("quota"), error_after=1),
            Reply("done", first_delay=2),
        ],
        sleep=pass_time,
    )
    async with open_engine(model, settings=QUICK, observers=[calls], clock=clock) as engine:
        chat = await engine.create_chat()
        for _ in range(3):
            await engine.ask(chat.id, "go")
    assert [(call.outcome, call.reply and call.reply.text) for call in calls.calls] == [
        ("bad_request", ""),
        ("quota", "ha"),
        ("succeeded", "done"),
    ]
    assert [call.first_part_after for call in calls.calls] == [None, 3, 2]
    assert [call.request.messages[-1].text for call in calls.calls] == ["go"] * 3


class Closing(ScriptedModel):
    """A model whose stream, once its reply is complete, waits for the test and then fails to close."""

    def __init__(self) -> None:
        super().__init__(["done"])
        self.latch = Latch()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        try:
            async for part in super().stream(request):
                yield part
        finally:
            await self.latch.pass_through()
            raise LookupError("no way to close it")


async def test_reply_does_not_wait_for_its_stream_to_close(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    model = Closing()
    with caplog.at_level(logging.DEBUG):
        async with open_engine(model, settings=QUICK) as engine:
            chat = await engine.create_chat()
            assert (await engine.ask(chat.id, "hi")).text == "done"
            await model.latch.entered.wait()
            model.latch.open()
            await anyio.wait_all_tasks_blocked()
    (line,) = [record.getMessage() for record in caplog.records if "user_code_failed_late" in record.getMessage()]
    assert all(word in line for word in (f"chat_id={chat.id}", "step=1", "attempt=1", "no way to close it", "step"))


class Streaming(ScriptedModel):
    """A model whose `stream` returns what it is given, one after the other."""

    def __init__(self, *answers: Any) -> None:
        super().__init__([])
        self.answers = [*answers]

    def stream(self, request: ModelRequest) -> Any:
        return self.answers.pop(0)


async def not_awaited() -> None:
    """Return nothing: a model whose `stream` is such a function yields no parts."""


@pytest.mark.parametrize("made", [not_awaited, lambda: iter([ModelPart("finish")]), lambda: None])
async def test_stream_must_be_an_async_iterator(open_engine: OpenEngine, made: Callable[[], object]) -> None:
    answer = made()
    async with open_engine(Streaming(answer)) as engine:
        result = await engine.ask((await engine.create_chat()).id, "Hello?")
    error = result.chat.last_error
    assert error is not None
    assert (error.kind, error.retryable) == ("server_error", False)
    assert error.message == (
        f"the model's stream returned {type(answer).__name__!r}; it has to be an asynchronous iterator of ModelPart"
    )


# What is not tried again


@pytest.mark.parametrize("purpose", ["step", "summary"])
async def test_attempts_lost_with_workers_are_limited(open_engine: OpenEngine, purpose: str) -> None:
    """The reply itself may be what kills the workers."""
    asked = anyio.Event()

    def answer(request: ModelRequest) -> Reply:
        if request.purpose != purpose:
            return Reply("an answer")
        asked.set()
        return Reply("never said", delay=1e6)

    model = ScriptedModel(answer, summary=answer)
    settings = Settings(coalesce=0, shutdown_grace=0, idle_timeout=None, startup_timeout=None)
    async with open_engine(model, settings=settings) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        if purpose == "summary":
            await engine.wait(chat.id)
            await engine.request_compaction(chat.id)
        await asked.wait()
    for _ in range(MOST_LOST - 1):
        asked = anyio.Event()
        async with open_engine(model, settings=settings):
            await asked.wait()
    async with open_engine(model, settings=settings) as engine:
        rested = await engine.wait(chat.id)
        events = [event async for event in engine.events(chat.id, until_rest=True)]
    assert [request.purpose for request in model.requests].count(purpose) == MOST_LOST
    failures = [event.error for event in events if isinstance(event, ErrorEvent | CompactionEvent) if event.error]
    ((kind, message),) = [(error.kind, error.message) for error in failures]
    assert (kind, message.partition(" attempts")[0]) == ("server_error", str(MOST_LOST))
    assert rested.state == ("error" if purpose == "step" else "waiting")
