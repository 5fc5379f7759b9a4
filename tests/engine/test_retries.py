"""Retries that cost money: counted by cost and kind of failure, with their delays and the longest wait."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from support.clock import pass_time
from support.engines import OpenChat
from support.events import assert_told_right, events_of, seen
from support.life import NOW
from turnwise import ModelError, ModelPart, ModelRequest, RetryPolicy, Settings, Usage
from turnwise.engine.jobs.retries import decide_retry
from turnwise.providers.failures import failure_of
from turnwise.providers.scripted import Reply
from turnwise.states.facts import StepFacts
from turnwise.testing.clock import ManualClock

SETTINGS = Settings(coalesce=0, shutdown_grace=0, poll_interval=10_000, lease=100_000, renew_every=10_000)
QUICK = Settings(coalesce=0, retry=RetryPolicy(first_delay=0.001, max_delay=0.001))

Failure = tuple[str, bool]
"""The kind of an error, and whether the attempt was paid."""


@pytest.mark.parametrize(
    ("policy", "failures", "allowed"),
    [
        (RetryPolicy(), [("network", True)] * 3, 3),
        (RetryPolicy(), [("overloaded", False)] * 30, 25),
        (RetryPolicy(), [("network", True), ("overloaded", False)] * 5, 5),
        (RetryPolicy(), [("network", True), ("server_error", True)] * 5, 5),
        (RetryPolicy(alike=None), [("network", True)] * 30, 25),
        (RetryPolicy(alike=1), [("network", False), ("network", True)], 2),
        (RetryPolicy.persistent(), [("network", True)] * 9, 3),
        (RetryPolicy.persistent(), [("network", False)] * 99, 100),
        (RetryPolicy.interactive(), [("network", True)] * 9, 3),
        (RetryPolicy.interactive(), [("network", False)] * 9, 4),
        (RetryPolicy(attempts=2), [("network", True)] * 9, 2),
    ],
)
def test_paid_attempts_that_fail_alike_are_few(policy: RetryPolicy, failures: list[Failure], allowed: int) -> None:
    """An attempt that never reached a model between paid ones does not reset the count."""
    step, attempts = StepFacts(), 1
    for kind, paid in failures:
        if decide_retry(policy, step, ModelError(kind), paid=paid, now=NOW).delay is None:
            break
        step, attempts = step.failed(kind, paid=paid), attempts + 1
    assert attempts == allowed


@pytest.mark.parametrize(
    ("policy", "wait", "delay"),
    [
        (RetryPolicy(), 3600, 3600),
        (RetryPolicy(), 3601, None),
        (RetryPolicy.interactive(), 20, 20),
        (RetryPolicy.interactive(), 10_800, None),
        (RetryPolicy.interactive(), 1e300, None),
        (RetryPolicy.persistent(), 10_800, 10_800),
        (RetryPolicy.persistent(), 1e300, 946_684_800),
    ],
)
@pytest.mark.parametrize("kind", ["rate_limit", "overloaded"])
def test_wait_of_the_provider_has_a_ceiling(policy: RetryPolicy, wait: float, delay: float | None, kind: str) -> None:
    retry = decide_retry(policy, StepFacts(), ModelError(kind, retry_after=wait, status=429), paid=False, now=NOW)
    assert (retry.delay, retry.error.kind, retry.error.status) == (delay, kind, 429)
    assert ("max_retry_after" in retry.error.message) is (delay is None)
    if wait == 10_800 and delay is None:
        assert "until 2026-11-01 15:00:00 UTC" in retry.error.message


@pytest.mark.parametrize(
    ("parts", "limits", "kind"),
    [
        ([ModelPart("text_delta", text="Let me think.")], (90, 180, 360), "network"),
        ([ModelPart("heartbeat")], (60, 120, 240), "startup_timeout"),
        ([ModelPart("reasoning_delta", metadata={"id": "r"})], (60, 120, 240), "startup_timeout"),
        ([ModelPart("usage", usage=Usage(input_tokens=9))], (60, 120, 240), "startup_timeout"),
    ],
    ids=lambda value: value[0].type if isinstance(value, list) else None,
)
async def test_silent_stream_gets_longer_and_is_paid_three_times(
    open_chat: OpenChat, parts: list[ModelPart], limits: tuple[float, ...], kind: str
) -> None:
    clock = ManualClock()
    stalled: list[float] = []

    async def stall(seconds: float) -> None:
        stalled.append(seconds)
        await anyio.sleep_forever()

    silent = Reply(parts=[*parts, *parts], delay=1)
    async with open_chat(silent, settings=SETTINGS, clock=clock, sleep=stall) as (engine, chat, model):
        await engine.send_message(chat.id, "Prove it.")
        for number, limit in enumerate(limits, start=1):
            while len(stalled) < number:  # the part before was taken: the attempt has reached the model
                await clock.advance(0)
            await pass_time(clock, limit)
            if number < len(limits):
                assert (await seen(engine, chat.id, "retry", number)).error.kind == kind
                await pass_time(clock, 2 ** (number - 1))
        resting = await engine.wait(chat.id)
        assert resting.last_error is not None
        assert (resting.state, resting.last_error.kind, len(model.requests)) == ("error", kind, 3)
        assert "RetryPolicy.alike" in resting.last_error.message
        await assert_told_right(engine, chat.id)


@pytest.mark.parametrize(
    ("raised", "kind", "status", "wait"),
    [
        (ConnectionResetError("cut"), "network", None, None),
        (TimeoutError(), "network", None, None),
        (httpx.ReadTimeout("slow"), "network", None, None),
        (ExceptionGroup("tasks", [ConnectionError("cut")]), "network", None, None),
        (
            httpx.HTTPStatusError(
                "no",
                request=httpx.Request("POST", "http://x"),
                response=httpx.Response(429, headers={"retry-after": "0.002"}),
            ),
            "rate_limit",
            429,
            0.002,
        ),
        (type("ServiceError", (Exception,), {"status_code": 503})("busy"), "overloaded", 503, None),
        (type("ServiceError", (Exception,), {"status": 401})("who?"), "authentication", 401, None),
        (type("ServiceError", (Exception,), {"code": 404})("which?"), "unknown_model", 404, None),
        (httpx.UnsupportedProtocol("ftp"), "internal", None, None),
        (ValueError("odd"), "internal", None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_own_model_errors_are_what_they_are(
    open_chat: OpenChat,
    raised: Exception,
    kind: str,
    status: int | None,
    wait: float | None,
    wrapped: bool,
) -> None:
    """Errors that an SDK or the network raises out of an own model, bare or as the cause of the model's exception."""

    def fails(_request: ModelRequest) -> Any:
        if wrapped:
            raise RuntimeError("my model failed") from raised
        raise raised

    async with open_chat([fails, "Hello"], settings=QUICK) as (engine, chat, _):
        result = await engine.ask(chat.id, "hi")
        retries = [event for event in await events_of(engine, chat.id) if event.kind == "retry"]
        passes = kind in ("network", "rate_limit", "overloaded")
        assert result.chat.state == ("waiting" if passes else "error")
        reported = retries[0].error if passes else result.chat.last_error
        assert reported is not None
        assert (reported.kind, reported.status) == (kind, status)
        if wait is not None:
            assert retries[0].delay == wait


def test_raising_attributes_are_no_provider_failure() -> None:
    spiteful = type("Spiteful", (Exception,), {"__getattr__": lambda _self, _name: 1 / 0})
    assert failure_of(spiteful()) is None


async def test_retry_is_logged_with_step_attempt_and_delay(
    open_chat: OpenChat, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="turnwise")
    async with open_chat([Reply(error=ModelError("overloaded", status=503)), "Hello"], settings=QUICK) as (
        engine,
        chat,
        _,
    ):
        await engine.ask(chat.id, "hi")
    (line,) = [record.getMessage() for record in caplog.records if "attempt_retried" in record.getMessage()]
    for field in (f"chat_id={chat.id}", "step=1", "attempt=1", "delay=0.001", "kind=overloaded", "status=503"):
        assert field in line
