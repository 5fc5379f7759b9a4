"""What a provider's answer means for the retry: "not now" is tried again, "never" is not."""

from __future__ import annotations

from asyncio import CancelledError

import httpx2
import pytest
from pydantic_ai import exceptions as theirs

from turnwise.providers.pydantic_ai.errors import classified, model_error, writing
from turnwise.states.errors import ModelError


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
        ({"error": "only an error"}, "status_code: 400"),
        ({"error": {"message": ""}}, "status_code: 400"),
        ("only an error", "status_code: 400"),
        (None, "status_code: 400"),
    ],
    ids=str,
)
def test_what_the_provider_said_is_told_without_its_wrapping(body: object, told: str) -> None:
    said = str(model_error(theirs.ModelHTTPError(400, "m", body)))
    assert told in said
    assert ("status_code" in said) == ("status_code" in told)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (theirs.ModelAPIError("m", "no"), "network"),
        (theirs.ModelAPIError("m", "no", in_stream=True), "server_error"),
        (theirs.ModelAPIError("m", "no", provider_error_code="content_filter"), "content_filter"),
        (theirs.ModelAPIError("m", "no", provider_error_code="content_policy_violation"), "content_filter"),
        (theirs.ModelHTTPError(400, "m", provider_error_code="content_filter"), "content_filter"),
        (theirs.ModelAPIError("m", "no", provider_error_code="invalid_image"), "bad_request"),
        (theirs.ModelAPIError("m", "no", provider_error_code="vector_store_timeout", in_stream=True), "server_error"),
        (theirs.ModelHTTPError(410, "m"), "bad_request"),
        (theirs.ModelHTTPError(426, "m"), "bad_request"),
        (theirs.ModelRequestTimeout("m", 3), "network"),
        (httpx2.ReadError("cut"), "network"),
        (theirs.UnexpectedModelBehavior("no reply"), "network"),
        (theirs.ContentFilterError("no"), "content_filter"),
        (ValueError("odd"), "bad_request"),
        (RuntimeError("odd"), "bad_request"),
        (NotImplementedError("odd"), "bad_request"),
        (theirs.UserError("odd"), "bad_request"),
        (UnicodeError("odd"), "network"),
        (AttributeError("odd"), "network"),
        (theirs.FallbackExceptionGroup("all", [theirs.ModelHTTPError(400, "m"), httpx2.ReadError("cut")]), "network"),
        (theirs.FallbackExceptionGroup("all", [httpx2.ReadError("cut"), theirs.ModelHTTPError(400, "m")]), "network"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_failure_is_of_the_kind_by_which_the_engine_decides(failure: Exception, kind: str) -> None:
    error = model_error(failure)
    assert (error.kind, error.retry_after) == (kind, None)
    assert error.status == (failure.status_code if isinstance(failure, theirs.ModelHTTPError) else None)


def test_of_models_that_fall_back_on_each_other_the_last_refusal_counts_if_none_may_be_tried_again() -> None:
    refused = [theirs.ModelHTTPError(status, "m") for status in (400, 410)]
    assert model_error(theirs.FallbackExceptionGroup("all", refused)).status == 410


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError, AssertionError, TypeError])
def test_what_the_library_raises_once_an_answer_has_begun_refuses_nothing_and_is_told_by_its_name(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_cancellation_is_no_failure_of_the_provider() -> None:
    with pytest.raises(CancelledError), classified():
        raise CancelledError


def test_when_to_try_again_is_passed_on() -> None:
    error = model_error(theirs.ModelHTTPError(408, "m", retry_after=7))
    assert (error.retry_after, error.retryable) == (7, True)


def test_a_failure_that_says_nothing_is_told_by_its_name_and_a_long_one_is_cut() -> None:
    assert "ModelAPIError" in str(model_error(theirs.ModelAPIError("m", None)))  # type: ignore[arg-type]
    assert "RuntimeError" in str(model_error(RuntimeError()))
    told = str(model_error(RuntimeError("x" * 600)))
    assert "x" * 500 in told
    assert "x" * 501 not in told


@pytest.mark.parametrize("failure", [UnicodeError("odd"), RuntimeError("odd"), theirs.UserError("odd")])
def test_what_keeps_a_request_from_being_written_is_the_requests_fault(failure: Exception) -> None:
    with pytest.raises(ModelError, match="odd") as caught, writing():
        raise failure
    assert (caught.value.kind, caught.value.__cause__) == ("bad_request", failure)


def test_an_error_that_is_classified_stays_as_it_is() -> None:
    known = ModelError("overloaded")
    assert model_error(known) is known
