"""How often a prompt is paid for, and what a parameter of one request does to the next, over real HTTP."""

import json
from typing import Any

import pytest
from tests.wire.dialects import DIALECTS, Connect, Dialect, Google, Said

from support.wire.server import Answer, Server
from turnwise import Engine, RetryPolicy, Settings, SettingsError, tool
from turnwise.states.errors import REJECTED_REPLY
from turnwise.testing import ManualClock

QUICK = RetryPolicy(first_delay=0.001, max_delay=0.002)


ALL = [*DIALECTS, Google()]
each_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
PINGS = {"anthropic": 'event: ping\ndata: {"type": "ping"}\n\n', "google": Google().frames(Said())[0]}


def _silent(dialect: Dialect, *, words: bool) -> Answer:
    frames = dialect.frames(Said())
    return Answer(
        [*frames[: -dialect.finish_frames if words else 1], PINGS.get(dialect.name, ": ping\n\n") * 3], end="silence"
    )


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        pytest.param(dialect, words, marks=[pytest.mark.deep] * (dialect.name != "anthropic" or not words))
        for dialect in ALL
        for words in (False, True)
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
async def test_silent_stream_is_paid_three_times(
    dialect: Dialect, words: bool, server: Server, connect: Connect
) -> None:
    """It began, with words or without any, pinged, and said nothing more."""
    server.script = [_silent(dialect, words=words)]
    settings = Settings(startup_timeout=2 if words else 0.4, idle_timeout=0.1, retry=QUICK)
    async with Engine("sqlite://", model=await connect(dialect), settings=settings) as engine:
        chat = (await engine.ask(await new_chat(engine), "Prove it.")).chat
        assert (await engine.verify(chat.id)).ok
    assert (chat.state, len(server.asked)) == ("error", 3)
    assert "RetryPolicy.alike" in chat.last_error.message


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
    server.script = [refusal, Answer(dialect.frames(Said()))]
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
async def test_model_is_told_of_rejected_replies(
    dialect: Google, word: str, mends: bool, server: Server, connect: Connect
) -> None:
    rejected = Answer(dialect.frames(Said("Hm."), word))
    server.script = [rejected, rejected, Answer(dialect.frames(Said()))] if mends else [rejected]
    async with Engine("sqlite://", model=await connect(dialect), settings=Settings(retry=QUICK)) as engine:
        result = await engine.ask(await new_chat(engine), "Hi.")
        assert (await engine.verify(result.chat.id)).ok
        told = (await engine.explain(result.chat.id)).last_error
    bodies = [asked.body for asked in server.asked]
    assert len(bodies) == 3
    assert bodies[0] == bodies[1]
    assert word in json.dumps(bodies[2])
    if mends:
        assert (result.chat.state, result.text) == ("waiting", "Hello world.")
    else:
        assert told.kind == REJECTED_REPLY
        assert word in str(told.detail)


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
    """Wherever it was set: as a parameter, among the options of the provider, or with the model."""
    called = Said("", calls=[("call_1", "charge", "{}")])
    server.script = [Answer(dialect.frames(called)), Answer(dialect.frames(Said())), Answer(dialect.frames(called))]
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
        server.script = [Answer(DIALECTS[0].frames(Said()))]
        assert (await engine.ask(chat, "Hi.")).text == "Hello world."
