"""What a request is that someone builds by hand."""

from __future__ import annotations

from turnwise.providers.protocol import ModelRequest


def test_a_request_is_the_first_attempt_before_any_step_and_offers_nothing_unless_it_says_so() -> None:
    made = ModelRequest(purpose="summary", chat_id="c1", messages=[])
    assert (made.step, made.attempt) == (0, 1)
    assert (made.system, made.tools, made.parameters) == (None, (), {})
