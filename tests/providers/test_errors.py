"""What a provider's answer means for the retry: "not now" is tried again, "never" is not."""

from __future__ import annotations

import httpx2
import pytest
from pydantic_ai import exceptions as theirs

from turnwise.providers.pydantic_ai.errors import classified, model_error, writing
from turnwise.states.errors import ModelError

STATUSES = {
    401: "authentication",
    402: "quota",
    403: "authentication",
    404: "unknown_model",
    413: "context_overflow",
    422: "bad_request",
    429: "rate_limit",
    500: "server_error",
    502: "server_error",
    503: "overloaded",
    529: "overloaded",
}
REQUEST = httpx2.Request("POST", "http://x")


@pytest.mark.parametrize(
    ("status", "retried"),
    [(400, False), (401, False), (404, False), (408, True), (409, True), (413, False), (422, False), (425, True)],
)
def test_transient_status_is_retryable(status: int, retried: bool) -> None:
    error = model_error(theirs.ModelHTTPError(status, "m", {"error": {"message": "no"}}))
    assert (error.retryable, error.status) == (retried, status)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        *((theirs.ModelHTTPError(status, "m"), kind) for status, kind in STATUSES.items()),
        *(
            (httpx2.HTTPStatusError("no", request=REQUEST, response=httpx2.Response(status)), kind)
            for status, kind in STATUSES.items()
            if kind not in ("context_overflow", "authentication", "unknown_model")
        ),
        (ConnectionError("refused"), "network"),
        (TimeoutError(), "network"),
        (httpx2.ConnectError("refused"), "network"),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'status_code', value)}",
)
def test_failure_of_a_custom_model_is_what_it_says(failure: Exception, kind: str) -> None:
    """A model of pydantic-ai that somebody wrote raises no class of a category, as those of pydantic-ai do."""
    assert model_error(failure).kind == kind


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"message": "plain"}, "plain"),
        ({"error": {"message": "wrapped"}}, "wrapped"),
        ({"error": {"error": {"message": "twice"}}}, "twice"),
        ({"error": "only an error"}, "status_code: 400"),
        ({"error": {"message": ""}}, "status_code: 400"),
        ("only an error", "status_code: 400"),
        (None, "status_code: 400"),
    ],
    ids=str,
)
def test_error_message_of_the_provider_is_unwrapped(body: object, told: str) -> None:
    said = str(model_error(theirs.ModelHTTPError(400, "m", body)))
    assert told in said
    assert ("status_code" in said) == ("status_code" in told)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (theirs.ModelAPIError("m", "no"), "network"),
        (theirs.ModelAPIError("m", "no", in_stream=True), "server_error"),
        (theirs.ModelAPIError("m", "no", provider_error_code="content_filter"), "content_filter"),
        (theirs.ModelHTTPError(400, "m", provider_error_code="content_filter"), "content_filter"),
        (theirs.ModelAPIError("m", "no", provider_error_code="vector_store_timeout", in_stream=True), "server_error"),
        (theirs.ModelHTTPError(410, "m"), "bad_request"),
        (theirs.ModelRequestTimeout("m", 3), "network"),
        (httpx2.ReadError("cut"), "network"),
        (theirs.UnexpectedModelBehavior("no reply"), "network"),
        (theirs.ContentFilterError("no"), "content_filter"),
        (ValueError("odd"), "bad_request"),
        (theirs.UserError("odd"), "bad_request"),
        (UnicodeError("odd"), "network"),
        (AttributeError("odd"), "network"),
        (theirs.FallbackExceptionGroup("all", [theirs.ModelHTTPError(400, "m"), httpx2.ReadError("cut")]), "network"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_failure_maps_to_its_error_kind(failure: Exception, kind: str) -> None:
    error = model_error(failure)
    assert (error.kind, error.retry_after) == (kind, None)
    assert error.status == (failure.status_code if isinstance(failure, theirs.ModelHTTPError) else None)


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError, AssertionError, TypeError])
def test_error_after_the_response_started_is_retryable(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """What it says may quote the answer: the log alone has it."""

    def broken_off() -> None:
        with classified() as exchange:
            exchange.answered = True
            raise kind("sk-secret")

    with pytest.raises(ModelError) as caught:
        broken_off()
    assert (caught.value.kind, caught.value.retryable) == ("network", True)
    assert kind.__name__ in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    (line,) = caplog.records
    assert line.message == "answer_unreadable"
    assert line.exc_info is not None
    assert line.exc_info[1] is caught.value.__cause__


def test_retry_after_is_passed_on() -> None:
    error = model_error(theirs.ModelHTTPError(408, "m", retry_after=7))
    assert (error.retry_after, error.retryable) == (7, True)


@pytest.mark.parametrize("failure", [UnicodeError("odd"), RuntimeError("odd"), theirs.UserError("odd")])
def test_error_while_writing_a_request_is_bad_request(failure: Exception) -> None:
    with pytest.raises(ModelError, match="odd") as caught, writing():
        raise failure
    assert (caught.value.kind, caught.value.__cause__) == ("bad_request", failure)
