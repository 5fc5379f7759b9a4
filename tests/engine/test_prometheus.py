"""Prometheus: what each call and each decision adds to the metrics, and under which labels."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from support.life import ERROR, NOW, compacting, queued, said, streaming
from turnwise import Usage
from turnwise.engine.observers.observer import ModelCall, ToolRun
from turnwise.engine.observers.prometheus import PrometheusObserver
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest, SentReminder
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.errors import FatalToolError, InvalidArgument
from turnwise.states.messages import Message
from turnwise.states.names import CallStatus, Executor, StopReason

ASKED = {"provider": "p", "model": "m"}
NONE = {"provider": "none", "model": "none"}


class Watched:
    """An observer, and the figures in its registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"turnwise_{name}", labels)


@pytest.fixture
def metrics() -> Watched:
    return Watched()


def message(text: str, role: Any = "user") -> Message:
    position = 0 if role == "system" else 1
    return Message(id="", role=role, parts=said(text), turn=1, step=0, created_at=NOW, position=position)


def call(*messages: Message, chat_id: str = "c", purpose: Any = "step", **known: Any) -> ModelCall:
    reminders = (SentReminder("hurry", "warning"),)
    request = ModelRequest(purpose=purpose, chat_id=chat_id, messages=list(messages), reminders=reminders)
    return ModelCall(provider="p", model="m", request=request, **known)


def reply(usage: Usage | None, stop_reason: StopReason | None = StopReason.end_turn) -> ModelReply:
    return ModelReply((), ModelPart("finish", stop_reason=stop_reason, usage=usage))


def test_prompt_is_measured_when_it_is_sent(metrics: Watched) -> None:
    asked = call(message("hello"), message("<reminder>brief</reminder>", "system"), message("you"))
    ended = metrics.observer.model_called(asked)
    assert metrics("prompt_messages_sum", purpose="step", **ASKED) == 3
    assert metrics("prompt_characters_sum", purpose="step", **ASKED) == asked.characters
    assert metrics("reminders_total", producer="hurry", severity="warning", **ASKED) == 1
    assert metrics("model_call_seconds_count", purpose="step", outcome="succeeded", **ASKED) is None
    asked.seconds, asked.first_part_after = 4.0, 0.25
    asked.reply = reply(Usage(input_tokens=10, output_tokens=3, cost=Decimal("0.25")))
    ended()
    assert metrics("model_call_seconds_sum", purpose="step", outcome="succeeded", **ASKED) == 4
    assert metrics("first_part_seconds_sum", **ASKED) == 0.25
    assert metrics("tokens_total", direction="input", **ASKED) == 10
    assert metrics("tokens_total", direction="output", **ASKED) == 3
    assert metrics("cost_dollars_total", **ASKED) == 0.25


def test_unknown_tool_has_no_label_of_its_own(metrics: Watched) -> None:
    made = ToolCall(call_id="c", name="add", arguments={}, executor=Executor.local, index=0, step=1)
    done = CallOutcome(call_id="c", status=CallStatus.succeeded, output=1, is_error=False)
    for known, result in ((True, done), (True, None), (False, done), (True, FatalToolError("x"))):
        run = ToolRun(chat_id="c", call=made, known=known)
        ended = metrics.observer.tool_started(run)
        run.result, run.seconds = result, 2.0
        ended()
    for tool, outcome in (("add", "succeeded"), ("add", "cancelled"), ("unknown", "succeeded"), ("add", "fatal")):
        assert metrics("tool_seconds_count", tool=tool, outcome=outcome) == 1
        assert metrics("tool_seconds_sum", tool=tool, outcome=outcome) == 2


def test_running_chats_is_a_gauge(metrics: Watched) -> None:
    for running in (3, 1):
        metrics.observer.running(running)
        assert metrics("running_chats") == running


def test_waiting_seconds_fall_back_to_zero(metrics: Watched) -> None:
    metrics.observer.waiting({"support": 7.5, "research": 2})
    metrics.observer.waiting({"support": 9.5})
    assert metrics("waiting_seconds", agent="support") == 9.5
    assert metrics("waiting_seconds", agent="research") == 0


def test_steps_and_retries_are_counted_by_model(metrics: Watched) -> None:
    retried = streaming()
    metrics.observer.model_called(call(message("hi")))
    metrics.observer.transitioned(retried.discard())
    assert metrics("retries_total", kind="overloaded", **ASKED) == 1
    assert metrics("transitions_total", trigger="attempt_discarded", source="streaming", target="streaming") == 1
    finished = streaming().reply()
    metrics.observer.transitioned(finished)
    assert metrics("steps_total", **ASKED) == 1
    metrics.observer.transitioned(finished)  # the chat was at rest, and is forgotten
    assert (metrics("steps_total", **ASKED), metrics("steps_total", **NONE)) == (1, 1)
    assert metrics("transitions_total", trigger="step_finished", source="streaming", target="waiting") == 2


@pytest.mark.parametrize(("outcome", "kind"), [("finished", None), ("failed", ERROR.kind)])
def test_steps_are_timed_and_failures_counted(metrics: Watched, outcome: str, kind: str | None) -> None:
    """From the first attempt on, whatever was tried again in between."""
    life = queued(streaming())
    for decision in life.decisions:
        metrics.observer.transitioned(decision)
    metrics.observer.model_called(call(message("hi"), chat_id=life.facts.chat_id))
    life.wait(3)
    for decision in (life.discard(), life.attempt(), life.reply() if kind is None else life.fail()):
        metrics.observer.transitioned(decision)
    assert metrics("step_seconds_count", outcome=outcome, **ASKED) == 1
    assert metrics("step_seconds_sum", outcome=outcome, **ASKED) == 3
    assert metrics("failed_steps_total", kind=ERROR.kind, **ASKED) == (None if kind is None else 1)


@pytest.mark.parametrize("outcome", ["compacted", "declined", "failed"])
def test_compactions_are_counted_by_outcome(metrics: Watched, outcome: str) -> None:
    life = compacting()
    decision = life.compact() if outcome == "compacted" else life.fail_to_compact(declined=outcome == "declined")
    metrics.observer.transitioned(decision)
    assert metrics("compactions_total", outcome=outcome, **NONE) == 1
    assert [metrics("steps_total", **NONE), metrics("retries_total", kind="overloaded", **NONE)] == [None, None]


def test_each_observer_needs_its_own_registry(metrics: Watched) -> None:
    with pytest.raises(InvalidArgument, match=r"^registry: must have no metrics of turnwise yet, give each observer a"):
        PrometheusObserver(metrics.registry)
    other = Watched()
    other.observer.running(1)
    assert metrics("running_chats") == 0
