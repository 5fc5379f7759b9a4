"""Replies as the machine stores them: stored parts, planned calls, and texts of errors."""

from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
import structlog
from msgspec.structs import replace
from tests.engine.leased import leased_chat

from support.latches import Latch
from support.life import streaming, text_parts
from turnwise import ClientTool, ModelError, ModelPart, Settings, StoreError, ToolFailed, Usage, tool
from turnwise.engine.isolation.error_texts import describe_error, text_for_model
from turnwise.engine.jobs.endings import error_info
from turnwise.engine.jobs.live_parts import LiveParts
from turnwise.engine.jobs.reply import build_origin, partial_reply, split_calls
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.providers.protocol import ModelRequest, ToolSpec
from turnwise.providers.reply_builder import ReplyBuilder
from turnwise.states.arguments import Origin
from turnwise.states.events import PartEvent
from turnwise.states.messages import Part, ReasoningPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor
from turnwise.states.values.digests import digest
from turnwise.testing.clock import ManualClock


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(policy="ask")
async def pay() -> str:
    """Pay."""
    return "paid"


CUTTING = Settings(output_limit_bytes=100)
BOX = Toolbox({"look": look, "pay": pay}, Settings())
_PROFILE = replace(
    streaming().facts.profile, client_tools=(ClientTool("ask", "Ask.", {"type": "object", "required": ["n"]}),)
)
FACTS = replace(streaming().facts, profile=_PROFILE)


def call(name: str, call_id: str = "c", executor: Executor = Executor.local, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(call_id=call_id, name=name, arguments=arguments, executor=executor)


@pytest.mark.parametrize(
    ("part", "is_kept"),
    [
        (text_parts("x")[0], True),
        (text_parts(" \n")[0], False),
        (ReasoningPart(text=" "), False),
        (ReasoningPart(text="", signature="s"), True),
        (call("search", executor=Executor.provider), True),
    ],
    ids=str,
)
def test_blank_parts_are_not_stored(part: Part, is_kept: bool) -> None:
    assert split_calls([part], FACTS, BOX) == ((part,) if is_kept else (), ())


def test_calls_are_planned_with_index_and_executor() -> None:
    parts = [
        call("ask", "a", n=1),
        *text_parts("x"),
        call("search", "p", Executor.provider),
        call("pay", "b", Executor.client),
        call("look", "c", Executor.client),
        call("ask", "d", Executor.client),
        call("gone", "e"),
    ]
    stored, calls = split_calls(parts, FACTS, BOX)
    assert [(one.call_id, one.index, one.executor, one.refusal is not None) for one in calls] == [
        ("a", 0, Executor.client, False),
        ("b", 1, Executor.client, False),
        ("c", 2, Executor.local, False),
        ("d", 3, Executor.local, True),
        ("e", 4, Executor.local, True),
    ]
    executors = [(part.call_id, part.executor) for part in stored if isinstance(part, ToolCallPart)]
    assert executors == [
        ("a", Executor.client),
        ("p", Executor.provider),
        ("b", Executor.local),
        ("c", Executor.local),
        ("d", Executor.local),
        ("e", Executor.local),
    ]
    assert len(stored) == len(parts)


def test_partial_reply_drops_unanswered_provider_calls() -> None:
    answered = ToolResultPart(call_id="p", name="search", output="found")
    parts = [*text_parts("x"), call("search", "p", Executor.provider), answered, call("search", "q", Executor.provider)]
    usage, origin = Usage(input_tokens=1), Origin(model="m", provider="p")
    stored = partial_reply([*parts, call("look", "c")], FACTS, BOX, usage=usage, origin=origin)
    assert [getattr(part, "call_id", "") for part in stored.parts] == ["", "p", "p", "c"]
    assert [one.call_id for one in stored.calls] == ["c"]
    assert (stored.step, stored.attempt, stored.usage, stored.origin) == (
        FACTS.step.number,
        FACTS.step.attempt,
        usage,
        origin,
    )


def test_model_error_is_stored_and_cut_at_the_limit() -> None:
    error = ModelError("rate_limit", message="slow down " * 50, status=429, retryable=False)
    info = error_info(error, FACTS.step, CUTTING)
    assert (info.kind, info.status, info.retryable) == ("rate_limit", 429, False)
    assert (info.step, info.attempt) == (FACTS.step.number, FACTS.step.attempt)
    assert info.detail.startswith("slow down")
    assert len(info.detail.encode()) < 200
    half = error_info(ModelError("network", message="half \ud800"), FACTS.step, CUTTING).detail
    assert half.encode()


def test_other_errors_are_internal_and_name_the_step() -> None:
    info = error_info(OSError("disk"), FACTS.step, CUTTING)
    assert (info.kind, info.retryable) == ("internal", False)
    assert info.detail == f"step {FACTS.step.number}: OSError: disk"
    assert "disk" not in info.message


# What the model gets of a failed tool

UNKNOWN = "The outcome is unknown: it may or may not have taken effect."


def fails(_error: BaseException) -> str:
    raise LookupError("no words")


def words(text: Any) -> Callable[[BaseException], Any]:
    return lambda _error: text


def test_error_text_is_cut_at_the_limit() -> None:
    assert describe_error(ValueError("bad")) == "ValueError: bad"
    assert describe_error(ValueError()) == "ValueError"
    most = "x" * (2000 - len("ValueError: "))
    assert describe_error(ValueError(most)) == f"ValueError: {most}"
    assert describe_error(ValueError(most + "yz")) == f"ValueError: {most}\n[cut: 2 of 2002 bytes are not shown]"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("a secret"), "no disk"),
        (TimeoutError("a secret"), f"no disk. {UNKNOWN}"),
        (CancelledError("a secret"), f"no disk. {UNKNOWN}"),
        (ToolFailed("not today"), "not today"),
    ],
)
def test_describe_error_text_goes_to_the_model(error: BaseException, text: str) -> None:
    assert text_for_model(error, words("no disk")) == text
    assert text_for_model(TimeoutError(), words("No disk.")) == f"No disk. {UNKNOWN}"
    assert text_for_model(OSError(), words("half \ud800")) == "half \ufffd"


@pytest.mark.parametrize(
    ("describe", "problem"),
    [
        (words(None), "it gave NoneType, where text is wanted"),
        (words(b"bytes"), "it gave bytes, where text is wanted"),
        (words(" \n"), "it gave str, where text is wanted"),
        (fails, None),
    ],
)
def test_failed_describe_error_falls_back_to_type(describe: Any, problem: str | None) -> None:
    with structlog.testing.capture_logs() as logs:
        assert text_for_model(OSError("a secret"), describe) == "OSError"
        assert text_for_model(TimeoutError("a secret"), describe) == f"TimeoutError. {UNKNOWN}"
    assert [line["event"] for line in logs] == ["describe_error_failed"] * 2
    assert [line.get("problem") for line in logs] == [problem] * 2
    assert [type(line.get("exc_info")) for line in logs] == [type(None) if problem else LookupError] * 2


# Parts of a reply are stored in batches


class Attempt:
    """The live parts of an attempt: the third step, its second attempt."""

    def __init__(self, coalesce: float = 0) -> None:
        self.leased, self.shelf = leased_chat(settings=Settings(coalesce=coalesce))
        self.clock = cast("ManualClock", self.leased.runtime.clock)
        self.builder, self.ended = ReplyBuilder(), list[Exception]()
        self.live = LiveParts(self.leased, self.builder, self.ended.append)

    def hear(self, text: str) -> None:
        if self.builder.add(ModelPart("text_delta", text=text)):
            self.live.schedule_flush()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with anyio.fail_after(60):
            async with self.leased.runtime.tasks.running():
                yield

    @property
    def batches(self) -> list[str]:
        """Batches that were stored or are about to be: the text of each."""
        return [
            "".join(event.part.delta or "" for event in batch if isinstance(event, PartEvent))
            for _, _, batch in self.shelf.appended
        ]


async def until(happened: Callable[[], object]) -> None:
    while not happened():
        await anyio.lowlevel.checkpoint()


async def a_while() -> None:
    """Let every due timer fire and every task continue."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


async def test_parts_wait_for_the_running_batch() -> None:
    attempt, latch = Attempt(), Latch()
    attempt.shelf.storing = latch.pass_through
    async with attempt.running():
        attempt.hear("one ")
        await latch.entered.wait()
        attempt.hear("two ")
        attempt.hear("three")
        await a_while()
        assert attempt.batches == ["one "], "one batch at a time"
        latch.open()
        await until(lambda: len(attempt.batches) == 2)
        await a_while()
    assert attempt.batches == ["one ", "two three"]


async def test_parts_wait_for_an_unavailable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model continues meanwhile, since ending the attempt would mean paying for the reply again."""
    monkeypatch.setattr("turnwise.engine.jobs.leased_chat.AGAIN_AFTER", 0)
    attempt, failures = Attempt(), [StoreError("away", passing=True) for _ in range(2)]

    async def fail() -> None:
        if failures:
            raise failures.pop()

    attempt.shelf.storing = fail
    async with attempt.running():
        with attempt.shelf.broadcaster.listen("c") as subscriber:
            attempt.hear("one ")
            await until(lambda: subscriber.take(-1) or attempt.ended)
        attempt.hear("two")
        await until(lambda: attempt.batches[-1] == "two" or attempt.ended)
        await a_while()
        assert (attempt.ended, attempt.batches) == ([], ["one ", "one ", "one ", "two"])


def test_origin_has_the_digest_of_the_tools_that_were_offered() -> None:
    """Python finds their schemas equal; JSON does not."""
    leased, _ = leased_chat(tools=[look])
    request = ModelRequest(purpose="step", chat_id="c", messages=[])
    digests = []
    for default in (1, True, 1, None):
        offered = () if default is None else (ToolSpec("look", "Look.", {"default": default}),)
        digests.append(build_origin(leased.configuration, replace(request, tools=offered)).tools_digest)
    first, other, again, none = digests
    assert (first, other, none) == (again, digest([["look", "Look.", {"default": True}]]), None)
    assert first != other
