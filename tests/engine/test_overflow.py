"""Overflow: a prompt refused as too long is folded once per step, in pieces if needed, and not endlessly."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.chats import contents

from support.engines import MakeModel, OpenChat, OpenEngine
from support.events import assert_told_right, events_of, phases
from support.exploring import examples
from support.stores import stored_at
from turnwise import CompactionPolicy, Engine, ModelError, ModelRequest, Settings, tool
from turnwise.engine.jobs.summarise import MOST_REQUESTS
from turnwise.engine.prompt.history import SUMMARY_PREFIX
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import CompactionEvent
from turnwise.states.messages import length_of

FULL = ["started", "summarised", "stored", "finished"]
FAILED = ["started", "failed"]
TOO_LONG = Reply(error=ModelError("context_overflow", message="too many tokens", status=400))


def quick(**more: Any) -> Settings:
    return Settings(coalesce=0, poll_interval=1000, lease=3000, renew_every=1000, **more)


@tool
async def look(at: str = "") -> str:
    """Look around."""
    return f"seen {at}"


def size_of(request: ModelRequest) -> int:
    return sum(length_of(part) for message in request.messages for part in message.parts)


def narrow(window: int, reply: Callable[[ModelRequest], Reply | str]) -> Callable[[ModelRequest], Reply | str]:
    """Return a script entry that refuses requests longer than `window` characters."""
    return lambda request: TOO_LONG if size_of(request) > window else reply(request)


def purposes(model: ScriptedModel) -> list[str]:
    return [request.purpose for request in model.requests]


async def test_overflow_compacts_and_repeats_the_step(open_chat: OpenChat) -> None:
    looks = Reply("", calls=[Call("look", {"at": "a"})])
    async with open_chat([looks, TOO_LONG, "done"], settings=quick(), tools=[look]) as (engine, chat, model):
        result = await engine.ask(chat.id, "my words")
        assert (result.text, result.chat.state, result.chat.step) == ("done", "waiting", 2)
        assert await phases(engine, chat.id) == FULL
        assert purposes(model) == ["step", "step", "summary", "step"]
        assert contents(model.requests[-1].messages) == [("user", SUMMARY_PREFIX + "summary"), ("user", "my words")]
        await assert_told_right(engine, chat.id)


@pytest.mark.parametrize("refusal", [TOO_LONG, Reply(error=ModelError("context_overflow", True))])  # noqa: FBT003
async def test_second_overflow_ends_in_error_until_resume(open_chat: OpenChat, refusal: Reply) -> None:
    """An overlong prompt is not sent again unchanged, even if the error allows it."""
    looks = Reply("", calls=[Call("look", {})])
    script = [looks, refusal, refusal, refusal, "done"]
    async with open_chat(script, settings=quick(), tools=[look]) as (engine, chat, model):
        failed = (await engine.ask(chat.id, "hello")).chat
        assert (failed.state, failed.last_error and failed.last_error.kind) == ("error", "context_overflow")
        assert purposes(model) == ["step", "step", "summary", "step"]
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert purposes(model)[4:] == ["step", "summary", "step"]


async def test_overlong_summary_request_is_folded_in_pieces(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """Each piece is sent with the summary of the earlier ones, so nothing is lost."""
    model = strict_model(
        [*("x" * 1000 for _ in range(8)), TOO_LONG, narrow(5000, lambda _: "done")],
        summary=narrow(5000, lambda request: f"S{len(request.messages)}"),
    )
    async with open_engine(model, settings=quick()) as engine:
        chat = await engine.create_chat()
        for number in range(8):
            await engine.ask(chat.id, f"{number}" * 100)
        assert (await engine.ask(chat.id, "and now?")).text == "done"
        summaries = [request for request in model.requests if request.purpose == "summary"]
        fitting = [request for request in summaries if size_of(request) <= 5000]
        assert len(fitting) > 1
        sent = "".join(message.text for request in fitting for message in request.messages)
        assert all(f"{number}" * 100 in sent for number in range(8))
        assert all(request.messages[0].text.startswith(SUMMARY_PREFIX) for request in fitting[1:])
        assert await phases(engine, chat.id) == FULL


async def test_compaction_takes_bounded_requests(open_chat: OpenChat) -> None:
    script = [*("x" * 500 for _ in range(40)), TOO_LONG]
    async with open_chat(script, summary=narrow(1400, lambda _: "short"), settings=quick()) as (engine, chat, model):
        for number in range(40):
            await engine.ask(chat.id, f"{number:03}" * 100)
        failed = (await engine.ask(chat.id, "and now?")).chat
        assert (failed.state, failed.last_error and failed.last_error.kind) == ("error", "context_overflow")
        assert purposes(model).count("summary") == MOST_REQUESTS


async def test_overlong_result_is_cut_for_summary_only(open_chat: OpenChat) -> None:
    long = "begin " + "x" * 30_000 + " end"

    @tool
    async def read() -> str:
        """Read a lot."""
        return long

    script = [Reply("", calls=[Call("read", {})]), narrow(5000, str), narrow(5000, lambda _: "done")]
    summary = narrow(5000, lambda _: "short")
    async with open_chat(script, summary=summary, settings=quick(), tools=[read]) as (engine, chat, model):
        assert (await engine.ask(chat.id, "read it")).text == "done"
        written = [r for r in model.requests if r.purpose == "summary" and size_of(r) <= 5000]
        outputs = [one.result.output for request in written for one in request.messages if one.result]
        assert outputs
        for output in outputs:
            assert (output[:7], output[-5:], "left out" in output) == ("begin x", "x end", True)
        stored = [message.result.output for message in await engine.messages(chat.id) if message.result]
        assert stored == [long]


@pytest.mark.parametrize(
    ("summary", "ends"),
    [("short", FULL), (Reply(""), FAILED), (Reply(error=ModelError("server_error")), FAILED)],
    ids=["folded", "empty", "failed"],
)
async def test_prompt_that_will_not_fit_is_folded_first(open_chat: OpenChat, summary: Any, ends: list[str]) -> None:
    """A server that truncates prompts refuses none. A step continues even if the summary fails."""

    @tool
    async def read() -> str:
        """Read a lot."""
        return "r" * 5000

    script = [
        Reply("hi", usage=(600, 5)),
        Reply("", calls=[Call("read", {})], usage=(100, 5)),
        Reply("done", usage=(9, 5)),
    ]
    window = {"context_limit": 1000, "settings": quick()}
    async with open_chat(script, summary=summary, tools=[read], **window) as (engine, chat, model):
        await engine.ask(chat.id, "hello")
        result = await engine.ask(chat.id, "w" * 2000)
        assert (result.text, result.chat.state, result.chat.last_error) == ("done", "waiting", None)
        assert [purpose for purpose, _ in groupby(purposes(model))] == ["step", "summary", "step", "summary", "step"]
        assert await phases(engine, chat.id) == ends * 2
        history = [event for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)]
        assert {(event.step, event.estimated) for event in history} == {(1, True), (2, True)}
        assert ("user", "w" * 2000) in contents(model.requests[-1].messages)
        await assert_told_right(engine, chat.id)


async def test_long_import_is_folded_in_pieces_that_fit(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model([Reply("done", usage=(100, 5))], summary="short", context_limit=1000)
    history = [{"role": role, "content": f"{turn:03}" * 300} for turn in range(10) for role in ("user", "assistant")]
    async with open_engine(model, settings=quick()) as engine:
        chat = await engine.create_chat(history=history)
        assert (await engine.ask(chat.id, "and now?")).text == "done"
        *written, step = model.requests
        assert [request.purpose for request in written] == ["summary"] * len(written)
        assert max(map(size_of, written)) // 4 <= 1000
        assert all(any(f"{turn:03}" in str(request.messages) for request in written) for turn in range(10))
        assert contents(step.messages) == [("user", SUMMARY_PREFIX + "short"), ("user", "and now?")]


async def test_overflow_with_compaction_off_is_an_error(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model(["hi", TOO_LONG])
    async with open_engine(model, settings=quick(compaction=CompactionPolicy(threshold_percent=100))) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        assert (await engine.ask(chat.id, "again")).chat.state == "error"
        assert purposes(model) == ["step", "step"]


async def test_compaction_of_dead_worker_is_stored_once(database: Any, strict_model: MakeModel) -> None:
    """A compaction is stored once all pieces are folded."""
    reached = anyio.Event()

    def first(request: ModelRequest) -> Reply | str:
        if request.messages[0].text.startswith(SUMMARY_PREFIX):
            reached.set()
            return Reply(stall_after=0)
        return TOO_LONG if size_of(request) > 3000 else "one"

    dying = strict_model([*("x" * 1000 for _ in range(4)), TOO_LONG], summary=first)
    async with Engine(stored_at(database), model=dying, settings=quick(shutdown_grace=0)) as engine:
        chat = await engine.create_chat()
        for number in range(4):
            await engine.ask(chat.id, f"question {number}")
        await engine.send_message(chat.id, "and now?")
        await reached.wait()
    heir = strict_model(["done"], summary=narrow(3000, lambda _: "two"))
    async with Engine(stored_at(database), model=heir, settings=quick()) as engine:
        assert (await engine.wait(chat.id)).state == "waiting"
        stored = [phase for phase in await phases(engine, chat.id) if phase == "stored"]
        assert stored == ["stored"]
        assert [compaction.summary for compaction in await engine.compactions(chat.id)] == [SUMMARY_PREFIX + "two"]
        assert contents(heir.requests[-1].messages)[-1] == ("user", "and now?")
        assert (await engine.verify(chat.id)).ok


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    window=st.integers(0, 4000),
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    output=st.integers(0, 5000),
    own_limit=st.sampled_from([None, 10, 1000]),
)
async def test_any_context_limit_ends_in_few_requests(
    window: int, lengths: list[int], output: int, own_limit: int | None
) -> None:
    @tool
    async def read() -> str:
        """Read something."""
        return "y" * output

    def step(request: ModelRequest) -> Reply:
        read_already = request.messages[-1].role == "tool"
        return Reply("z" * 50, calls=() if read_already else [Call("read", {})], usage=(size_of(request) // 4, 1))

    model = ScriptedModel(narrow(window, step), summary=narrow(window, lambda _: "s" * 30), context_limit=own_limit)
    most = len(lengths) * 8 * (MOST_REQUESTS + 2)
    async with Engine("sqlite://", model=model, tools=[read], settings=quick(max_steps=4)) as engine:
        chat = await engine.create_chat()
        for length in lengths:
            with anyio.fail_after(60):
                resting = (await engine.ask(chat.id, "w" * length)).chat
            assert resting.state in {"waiting", "error"}
            if resting.state == "error":
                assert resting.last_error.kind == "context_overflow"
        assert len(model.requests) <= most
        per_step = [event.step for event in await events_of(engine, chat.id) if getattr(event, "phase", "") == "stored"]
        assert len(per_step) == len(set(per_step))
        assert (await engine.verify(chat.id)).ok
