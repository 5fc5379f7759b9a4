"""What a provider's answer means for the retry: "not now" is tried again, "never" is not."""

from __future__ import annotations

import pytest
from pydantic_ai import exceptions as theirs

from turnwise.providers.pydantic_ai.errors import model_error


@pytest.mark.parametrize(
    ("status", "retried"),
    [(400, False), (401, False), (404, False), (408, True), (409, True), (413, False), (422, False), (425, True)],
)
def test_a_status_that_may_pass_is_tried_again(status: int, retried: bool) -> None:  # noqa: FBT001
    error = model_error(theirs.ModelHTTPError(status, "m", {"error": {"message": "no"}}))
    assert (error.retryable, error.status) == (retried, status)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"message": "plain"}, "plain"),
        ({"error": {"message": "wrapped"}}, "wrapped"),
        ({"error": {"error": {"message": "twice"}}}, "twice"),
        ({"error": "only words"}, "status_code: 400"),
        ("only words", "status_code: 400"),
        (None, "status_code: 400"),
    ],
    ids=str,
)
def test_what_the_provider_said_is_told_without_its_wrapping(body: object, told: str) -> None:
    assert told in str(model_error(theirs.ModelHTTPError(400, "m", body)))
