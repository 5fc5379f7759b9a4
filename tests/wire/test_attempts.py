"""Paid attempts per prompt, and effects of one request's parameters on the next, over real HTTP."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.wire.dialects import DIALECTS, Anthropic, Chat, Connect, Dialect, Google, PlainReply, Responses
from tests.wire.requests import asked

from support.wire.server import Answer, End, Server
from turnwise import ChatState, Engine, ModelError, RetryPolicy, Settings, SettingsError, tool
from turnwise.states.model_errors import REJECTED_REPLY
from turnwise.testing import ManualClock

QUICK = RetryPolicy(first_delay=0.001, max_delay=0.002)


ALL = [*DIALECTS, Google()]
each_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)


async def new_chat(engine: Engine) -> str:
    return (await engine.create_chat()).id


@each_dialect
@pytest.mark.parametrize(
    ("after", "waits"), [("20", True), ("10800", False), ("Wed, 21 Oct 2099 07:28:00 GMT", False), ("9" * 20, False)]
)
async def test_wait_of_hours_ends_in_error(
    dialect: Dialect, after: str, waits: bool, server: Server, connect: Connect
) -> None:
    refusal = Answer.of({"error": {"code": 429, "message": "Slow down."}}, 429, retry_after=after)
    server.script = [refusal, Answer(dialect.frames(PlainReply()))]
    clock, settings = ManualClock(), Settings(retry=RetryPolicy.interactive(), shutdown_grace=0)
    async with Engine("sqlite://", model=await connect(dialect), settings=settings, clock=clock) as engine:
        chat = await new_chat(engine)
        await engine.send_message(chat, "Hi.")
        async for event in engine.events(chat):
            if event.kind in ("retry", "error"):
                break
        if waits:
            assert (event.kind, event.error.kind, event.delay) == ("retry", "rate_limit", 20)
        else:
            assert (event.kind, event.error.kind, len(server.asked)) == ("error", "rate_limit", 1)
            assert "asks for a wait of" in event.error.message
            assert " UTC" in event.error.message


REJECTED = [
    (Google(), "MALFORMED_FUNCTION_CALL"),
    (Google(), "UNEXPECTED_TOOL_CALL"),
    (Google(), "TOO_MANY_TOOL_CALLS"),
    (Google(), "LANGUAGE"),
]


@pytest.mark.parametrize(("dialect", "word"), REJECTED, ids=lambda value: value if isinstance(value, str) else None)
@pytest.mark.parametrize("mends", [False, True])
async def test_model_learns_of_rejected_replies(
    dialect: Google, word: str, mends: bool, server: Server, connect: Connect
) -> None:
    rejected = Answer(dialect.frames(PlainReply("Hm."), word))
    server.script = [rejected, rejected, Answer(dialect.frames(PlainReply()))] if mends else [rejected]
    async with Engine("sqlite://", model=await connect(dialect), settings=Settings(retry=QUICK)) as engine:
        result = await engine.ask(await new_chat(engine), "Hi.")
        assert (await engine.verify(result.chat.id)).ok
        reported = (await engine.explain(result.chat.id)).last_error
    bodies = [asked.body for asked in server.asked]
    assert len(bodies) == 3
    assert bodies[0] == bodies[1]
    assert word in json.dumps(bodies[2])
    if mends:
        assert (result.chat.state, result.text) == ("waiting", "Hello world.")
    else:
        assert reported.kind == REJECTED_REPLY
        assert word in str(reported.detail)


@tool
async def charge() -> str:
    """Charge the customer."""
    return "charged"


def _forced(body: dict[str, Any]) -> bool:
    choice = body.get("tool_choice") or body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode")
    word = choice.get("type") if isinstance(choice, dict) else choice
    return word not in (None, "auto", "AUTO")


@each_dialect
@pytest.mark.parametrize("where", ["required", "charge", "options", "settings"])
async def test_forced_choice_counts_until_first_result(
    dialect: Dialect, where: str, server: Server, connect: Connect
) -> None:
    """Set as a parameter, among the provider's options, or with the model."""
    called = PlainReply("", calls=[("call_1", "charge", "{}")])
    server.script = [
        Answer(dialect.frames(called)),
        Answer(dialect.frames(PlainReply())),
        Answer(dialect.frames(called)),
    ]
    model = await connect(dialect, **({"settings": {"tool_choice": "required"}} if where == "settings" else {}))
    parameters: dict[str, Any] = {"tool_choice": where}
    if where in ("options", "settings"):
        parameters = {"provider_options": {"tool_choice": "required"}} if where == "options" else {}
    async with Engine("sqlite://", model=model, tools=[charge], settings=Settings(parameters=parameters)) as engine:
        chat = await new_chat(engine)
        assert (await engine.ask(chat, "Charge me, once.")).text == "Hello world."
        server.script = [*server.script[:3], server.script[1]]
        await engine.ask(chat, "And again.")
    assert [_forced(asked.body) for asked in server.asked] == [True, False, True, False]


async def test_forbidden_calls_do_not_run(server: Server, connect: Connect) -> None:
    """Some servers ignore `tool_choice`: neither a tool nor a person is asked."""
    dialect, runs = DIALECTS[0], list[str]()

    @tool
    async def pay() -> str:
        """Pay."""
        runs.append("pay")
        return "paid"

    @tool(policy="ask")
    async def refund() -> str:
        """Refund."""
        return "paid back"

    calls = PlainReply("", calls=[("call_1", "pay", "{}"), ("call_2", "refund", "{}")])
    server.script = [Answer(dialect.frames(calls)), Answer(dialect.frames(PlainReply()))]
    settings = Settings(parameters={"tool_choice": "none"})
    async with Engine("sqlite://", model=await connect(dialect), tools=[pay, refund], settings=settings) as engine:
        result = await engine.ask(await new_chat(engine), "Hi.")
        assert (await engine.verify(result.chat.id)).ok
    assert (result.text, runs) == ("Hello world.", [])
    assert ["tool_choice" in str(message.result.output) for message in result.messages if message.result] == [
        True,
        True,
    ]


async def test_forced_tool_has_to_exist(server: Server, connect: Connect) -> None:
    model = await connect(DIALECTS[0])
    for name in ("chrage", "call"):
        with pytest.raises(SettingsError, match=f"has no tool '{name}'"):
            Engine("sqlite://", model=model, tools=[charge], settings=Settings(parameters={"tool_choice": name}))
    async with Engine("sqlite://", model=model, tools=[charge]) as engine:
        with pytest.raises(SettingsError, match="has no tool 'chrage'"):
            await engine.create_chat(parameters={"tool_choice": "chrage"})
        chat = await new_chat(engine)
        with pytest.raises(SettingsError, match="has no tool 'chrage'"):
            await engine.configure(chat, parameters={"tool_choice": "chrage"})
        await engine.configure(chat, parameters={"tool_choice": "charge"}, active_tools=[])
        server.script = [Answer(DIALECTS[0].frames(PlainReply()))]
        assert (await engine.ask(chat, "Hi.")).text == "Hello world."


# Faults


RETRY = RetryPolicy(first_delay=0.01, max_delay=0.02, attempts=3)
SETTINGS = Settings(retry=RETRY)
SLOW_TO_OPEN = Settings(retry=RETRY, startup_timeout=2)
SILENT = Settings(retry=RETRY, idle_timeout=1)


@dataclass(frozen=True)
class Fault:
    """A fault of the provider, and the chat's outcome."""

    name: str
    answer: Callable[[Dialect], Answer]
    kind: str
    passes: bool = True
    """Whether the next attempt is made, and succeeds."""
    least_delay: float = 0
    status: int | None = None
    settings: Settings = SETTINGS


def _part(dialect: Dialect, *, frames: int | None = None, tail: str = "", end: End = "end") -> Answer:
    """Return an answer with the start of the reply, or all but its end, and then something else."""
    whole = dialect.frames(PlainReply())
    shown = whole[: -dialect.finish_frames] if frames is None else whole[:frames]
    return Answer([*shown, tail] if tail else shown, end=end)


def _refusal(status: int, code: str, **headers: str) -> Callable[[Dialect], Answer]:
    return lambda dialect: dialect.error(status, code, f"scripted {code}", **headers)


def _half_a_frame(dialect: Dialect) -> str:
    frame = dialect.frames(PlainReply())[-dialect.finish_frames]
    return frame[: len(frame) // 2]


def _nonsense(dialect: Dialect) -> Answer:
    """Return an answer on which pydantic-ai or the SDK raises a bare error of Python's."""
    whole = dialect.frames(PlainReply())
    return Answer(whole[1:] if isinstance(dialect, Anthropic) else [whole[0], "data: null\n\n", *whole[1:]])


FAULTS = [
    Fault("slow open", lambda dialect: Answer(None), "startup_timeout", settings=SLOW_TO_OPEN),
    Fault("silence after output", lambda dialect: _part(dialect, end="silence"), "network", settings=SILENT),
    Fault("cut before anything", lambda dialect: Answer([]), "network"),
    Fault("nothing but the end", lambda dialect: Answer(["data: [DONE]\n\n"]), "network"),
    Fault(
        "a page of a proxy",
        lambda dialect: Answer(["<html>Starting ...</html>"], headers={"content-type": "text/html"}),
        "network",
    ),
    Fault("cut without finish reason", _part, "network"),
    Fault("connection dropped after output", lambda dialect: _part(dialect, end="drop"), "network"),
    Fault("cut mid-JSON", lambda dialect: _part(dialect, tail=_half_a_frame(dialect)), "network"),
    Fault("dropped mid-JSON", lambda dialect: _part(dialect, tail=_half_a_frame(dialect), end="drop"), "network"),
    Fault("not JSON", lambda dialect: _part(dialect, tail="data: {oops}\n\n"), "network"),
    Fault("frames of no known form", _nonsense, "network"),
    Fault("401", _refusal(401, "authentication_error"), "authentication", passes=False, status=401),
    Fault("403", _refusal(403, "permission_error"), "authentication", passes=False, status=403),
    Fault("404", _refusal(404, "not_found_error"), "unknown_model", passes=False, status=404),
    Fault(
        "redirect", lambda dialect: Answer([], 307, {"location": "https://scripted.example"}), "network", passes=False
    ),
    Fault("400", _refusal(400, "invalid_request_error"), "bad_request", passes=False, status=400),
    Fault("402", _refusal(402, "billing_error"), "quota", passes=False, status=402),
    Fault(
        "429 with Retry-After",
        _refusal(429, "rate_limit_error", retry_after="1"),
        "rate_limit",
        least_delay=1,
        status=429,
    ),
    Fault("500", _refusal(500, "api_error"), "server_error", status=500),
    Fault("529 before the stream", _refusal(529, "overloaded_error"), "overloaded", status=529),
    Fault(
        "overloaded inside the stream", lambda dialect: _part(dialect, tail=dialect.overloaded_frame()), "overloaded"
    ),
    Fault("context overflow", lambda dialect: dialect.overflow(), "context_overflow", passes=False, status=400),
    Fault("413", _refusal(413, "request_too_large"), "context_overflow", passes=False, status=413),
]


@pytest.mark.parametrize(
    ("dialect", "words"), [(Chat(), ("stop", "tool_calls")), (Anthropic(), ("end_turn", "tool_use"))], ids=["chat", "a"]
)
async def test_announced_calls_that_do_not_come_are_retried(
    dialect: Dialect, words: tuple[str, str], server: Server, connect: Connect
) -> None:
    """A call without a name is one that does not come: the turn must not end without a word."""
    announced = [frame.replace(f'"{words[0]}"', f'"{words[1]}"') for frame in dialect.frames(PlainReply(""))]
    server.script = [Answer(announced), Answer(dialect.frames(PlainReply()))]
    async with Engine("sqlite://", model=await connect(dialect), settings=SETTINGS) as engine:
        assert (await engine.ask(await new_chat(engine), "Hi.")).text == "Hello world."


UNREADABLE = [
    Answer([": a comment\n\n"] * 3),
    Answer(["data: [DONE]\n\n"]),
    Answer(["data: {oops\n\n"]),
    Answer.of({"id": "x", "object": "chat.completion", "model": "m", "created": 1, "choices": []}),
]


@pytest.mark.parametrize("answer", UNREADABLE, ids=["comments", "end", "no JSON", "no stream"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_unreadable_answer_is_paid_for_three_times(
    dialect: Dialect, answer: Answer, server: Server, connect: Connect
) -> None:
    server.script = [answer]
    async with Engine("sqlite://", model=await connect(dialect), settings=Settings(retry=QUICK)) as engine:
        result = await engine.ask(await new_chat(engine), "Hi.")
    assert (result.chat.state, result.chat.last_error.kind, len(server.asked)) == (ChatState.error, "network", 3)


SLOW = {"slow open", "silence after output", "429 with Retry-After"}


@pytest.mark.parametrize(
    ("fault", "dialect"),
    [
        pytest.param(fault, dialect, marks=[pytest.mark.deep] * (fault.name in SLOW and dialect is not DIALECTS[0]))
        for fault in FAULTS
        for dialect in DIALECTS
    ],
    ids=lambda value: value.name,
)
async def test_fault_is_retried_or_ends_in_error(
    fault: Fault, dialect: Dialect, server: Server, connect: Connect
) -> None:
    """The SDK itself never retries: every request is an attempt of the engine.

    The provider's text, here "scripted", is for operators: no event has it.
    """
    server.script = [fault.answer(dialect), Answer(dialect.frames(PlainReply()))]
    model = await connect(dialect)
    async with Engine("sqlite://", model=model, settings=fault.settings) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Greet the world.")
        chat = await engine.wait(chat.id)
        events = [event async for event in engine.events(chat.id, follow=False)]
        replies = [message for message in await engine.messages(chat.id) if message.role == "assistant"]
        explained = (await engine.explain(chat.id)).last_error
        assert (await engine.verify(chat.id)).ok

    assert "scripted" not in f"{chat}{events}"
    assert explained is None or explained.detail
    retries = [event for event in events if event.kind == "retry"]
    if fault.passes:
        assert (chat.state, chat.last_error) == (ChatState.waiting, None)
        assert [reply.text for reply in replies] == ["Hello world."]
        assert [(retry.attempt, retry.error.kind) for retry in retries] == [(1, fault.kind)]
        assert retries[0].delay >= fault.least_delay
        assert len(server.asked) == 2
    else:
        assert chat.state is ChatState.error
        assert (chat.last_error.kind, chat.last_error.retryable) == (fault.kind, False)
        assert (replies, retries, len(server.asked)) == ([], [], 1)
    reported = [*(retry.error for retry in retries), *([chat.last_error] if chat.last_error else [])]
    assert all(error.message for error in reported)
    if fault.status is not None:
        assert [error.status for error in reported] == [fault.status]


@pytest.mark.parametrize(
    ("code", "kind", "passes"),
    [
        ("server_error", "server_error", True),
        ("rate_limit_exceeded", "rate_limit", True),
        ("context_length_exceeded", "context_overflow", False),
        ("invalid_prompt", "bad_request", False),
        ("bio_policy", "content_filter", False),
    ],
)
async def test_failed_response_is_retried_unless_final(
    code: str, kind: str, passes: bool, server: Server, connect: Connect
) -> None:
    responses = Responses()
    failed = {"status": "failed", "error": {"code": code, "message": "it failed"}}
    server.script = [
        Answer(responses.ending(PlainReply(), "response.failed", **failed)),
        Answer(responses.frames(PlainReply())),
    ]
    async with Engine("sqlite://", model=await connect(responses), settings=SETTINGS) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "Greet the world.")
        chat = await engine.wait(chat.id)
        events = [event async for event in engine.events(chat.id, follow=False)]

    reported = [chat.last_error] if chat.last_error else [event.error for event in events if event.kind == "retry"]
    assert [error.kind for error in reported] == [kind]
    assert (chat.state, len(server.asked)) == ((ChatState.waiting, 2) if passes else (ChatState.error, 1))


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        *((dialect, body) for dialect in DIALECTS for body in ({}, None, [1], "<html>Starting ...</html>")),
        (DIALECTS[0], {"id": "x", "object": "chat.completion", "model": "m", "created": 1, "choices": []}),
    ],
    ids=lambda value: value.name if isinstance(value, Chat | Anthropic) else str(value),
)
async def test_malformed_response_body_is_a_retryable_error(
    dialect: Dialect, body: object, server: Server, connect: Connect
) -> None:
    server.script = [Answer.of(body)]
    with pytest.raises(ModelError) as failed:
        await (await connect(dialect)).generate(asked("Hi."))
    assert (failed.value.kind, failed.value.retryable) == ("network", True)
