"""What a worker knows of the attempt that it began."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.leased import leased_chat, streams
from turnwise import Usage
from turnwise.engine.held_attempt import HeldAttempt
from turnwise.engine.spending import Spending
from turnwise.providers.protocol import ModelPart
from turnwise.providers.reply_builder import ReplyBuilder


def test_usage_is_of_reply_or_summary() -> None:
    attempt = HeldAttempt(step=3, attempt=2)
    assert attempt.usage is None
    attempt.spending = Spending()
    assert attempt.usage is None
    attempt.spending.add(Usage(input_tokens=5))
    assert attempt.usage == Usage(input_tokens=5)
    attempt.reply = ReplyBuilder()
    attempt.reply.add(ModelPart("usage", usage=Usage(input_tokens=7)))
    assert attempt.usage == Usage(input_tokens=7)


@pytest.mark.parametrize(("step", "attempt", "is_own"), [(3, 2, True), (3, 1, False), (2, 2, False)])
def test_foreign_attempt_is_not_held(step: int, attempt: int, *, is_own: bool) -> None:
    leased, _ = leased_chat()
    assert leased.attempt is None
    began = streams()
    leased.facts = replace(began, step=replace(began.step, number=step, attempt=attempt))
    leased._begun = HeldAttempt(step=3, attempt=2)
    assert (leased.attempt is not None) is is_own
