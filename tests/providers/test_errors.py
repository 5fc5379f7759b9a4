"""Provider errors and retries: temporary ones are retried, permanent ones are not."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest
from pydantic_ai import exceptions as theirs

from support.audit_records import AT
from turnwise.providers.failures import retry_after_in
from turnwise.providers.pydantic_ai.errors import classified, model_error, writing
from turnwise.states.messages import FilePart, Message, TextPart
from turnwise.states.model_errors import ModelError, RefusedPart

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
    """A custom pydantic-ai model raises no categorized error, as pydantic-ai's own do."""
    assert model_error(failure).kind == kind


def test_unreachable_file_is_refused_not_retried() -> None:
    """pydantic-ai connects to the IP address that it has looked up. A provider that is away is asked again."""
    parts = (TextPart(text="Listen."), FilePart(media_type="audio/wav", url="https://files.example/a.wav?b=c"))
    message = Message(id="m1", role="user", parts=parts, turn=1, step=0, created_at=AT, position=1)
    found = []
    for path in ("a.wav?b=c", "chat"):
        headers = {"Host": "files.example"}
        request = httpx2.Request("GET", f"https://192.0.2.1/{path}", headers=headers)
        with pytest.raises(ModelError) as raised, classified([message]):
            raise httpx2.ConnectError("no route", request=request)
        found.append((raised.value.kind, list(raised.value.refused)))
    assert found == [("bad_request", [RefusedPart("m1", 1)]), ("network", [])]


@pytest.mark.parametrize(
    ("body", "expected"),
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
def test_error_message_of_the_provider_is_unwrapped(body: object, expected: str) -> None:
    message = str(model_error(theirs.ModelHTTPError(400, "m", body)))
    assert expected in message
    assert ("status_code" in message) == ("status_code" in expected)


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
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_failure_maps_to_its_error_kind(failure: Exception, kind: str) -> None:
    error = model_error(failure)
    assert (error.kind, error.retry_after) == (kind, None)
    assert error.status == (failure.status_code if isinstance(failure, theirs.ModelHTTPError) else None)


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError, AssertionError, TypeError])
def test_error_after_the_response_started_is_retryable(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """Its text may quote the answer: only the log has it."""

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
    assert line.exc_info[1] is caught.value.__cause__


def test_retry_after_is_seconds_or_a_time() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    values = ("7", "0.5", "-1", "nan", "soon", "9" * 400, later)
    *found, until = [retry_after_in({"Retry-After": value}) for value in values]
    assert found == [7, 0.5, None, None, None, None]
    assert 90 < (until or 0) <= 100
    assert retry_after_in({}) is None


def test_retry_after_is_passed_on() -> None:
    error = model_error(theirs.ModelHTTPError(408, "m", retry_after=7))
    assert (error.retry_after, error.retryable) == (7, True)


@pytest.mark.parametrize("failure", [UnicodeError("odd"), RuntimeError("odd"), theirs.UserError("odd")])
def test_error_while_writing_a_request_is_bad_request(failure: Exception) -> None:
    with pytest.raises(ModelError, match="odd") as caught, writing():
        raise failure
    assert (caught.value.kind, caught.value.__cause__) == ("bad_request", failure)


# Prompts that are too long


TOO_LONG = [
    "prompt is too long: 213462 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
    "Input is too long for requested model.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens.",
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "The input (300 tokens) is longer than the model's context length (200 tokens).",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "Prompt contains 300 tokens, too large for model with 200 maximum context length",
    "the request exceeds the available context size (4096 tokens), try increasing it",
    "Context size has been exceeded.",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "the input length exceeds the context length",
    "prompt too long; exceeded max context length by 4 tokens",
    "Input length 70000 exceeds the maximum length 65536",
    "Input length (265330) exceeds the maximum allowed input length of 262144 tokens.",
    "Please reduce the length of the messages or completion.",
    "Request too large for model: Limit 6000, Requested 7000, please reduce your message size and try again.",
    "invalid params, context window exceeds limit",
    "prompt token count of 5000 exceeds the limit of 4096",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "Range of input length should be [1, 30720]",
]
OTHERS = [
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens",
    "max_tokens exceeds the limit of 8192",
    "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 70.",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum",
    "tools.0.description: String should have at most 1024 characters",
    "context_management: Extra inputs are not permitted",
]


def refused(message: str, status: int = 400, **fields: str) -> theirs.ModelHTTPError:
    rejected = theirs.ModelRequestRejectedError
    body = {"error": {"message": message}}
    return theirs.ModelHTTPError.for_category(rejected, status_code=status, model_name="m", body=body, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", TOO_LONG)
@pytest.mark.parametrize(
    "failure",
    [
        refused,
        lambda text: theirs.ModelHTTPError(500, "m", {"message": text}),
        lambda text: theirs.ModelHTTPError(400, "m", {"error": text}),
        lambda text: theirs.ModelAPIError("m", text, in_stream=True),
    ],
    ids=["refused", "as a server's error", "as bare text", "in the stream"],
)
def test_message_of_a_refusal_means_overflow(text: str, failure: type[theirs.ModelAPIError]) -> None:
    error = model_error(failure(text))  # type: ignore[call-arg]
    assert (error.kind, error.retryable) == ("context_overflow", False)


@pytest.mark.parametrize(
    "failure",
    [
        refused("It does not fit.", provider_error_type="exceed_context_size_error"),
        refused("It does not fit.", provider_error_code="model_context_window_exceeded"),
        refused("It does not fit.", provider_error_type="request_too_large"),
        theirs.ModelHTTPError(413, "m"),
    ],
    ids=str,
)
def test_code_of_a_refusal_means_overflow(failure: theirs.ModelHTTPError) -> None:
    assert model_error(failure).kind == "context_overflow"


@pytest.mark.parametrize("text", OTHERS)
def test_other_length_limits_are_bad_requests(text: str) -> None:
    assert model_error(refused(text)).kind == "bad_request"


def rate_limited(message: str) -> theirs.ModelHTTPError:
    limited = theirs.ModelRateLimitError
    return theirs.ModelHTTPError.for_category(limited, status_code=429, model_name="m", body={"message": message})


@pytest.mark.parametrize(
    "text",
    [
        "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 30601.",
        "Request too large for model `m` on tokens per minute (TPM): Limit 8000, Requested 34031, please reduce it.",
    ],
)
def test_request_above_the_rate_limit_itself_is_an_overflow(text: str) -> None:
    """No wait helps, a shorter prompt does."""
    error = model_error(rate_limited(text))
    assert (error.kind, error.retryable) == ("context_overflow", False)


@pytest.mark.parametrize(
    "text",
    [
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 1500.",
        "Request too large: Limit unknown, Requested 30000.",
        "Request too large right now: Limit 30000, Requested 30000.",
        "Too many requests. Please reduce the length of the messages or come back later.",
    ],
)
def test_used_up_rate_limit_is_no_overflow(text: str) -> None:
    """Some providers use the same words as for a prompt that is too long, when a limit per minute is reached."""
    error = model_error(rate_limited(text))
    assert (error.kind, error.retryable) == ("rate_limit", True)


def test_time_of_retry_after_has_its_zone_or_utc() -> None:
    """`-0000` says that the zone is unknown: such a time is UTC."""
    waits = [retry_after_in({"retry-after": f"Wed, 21 Oct 2099 07:28:00 {zone}"}) for zone in ("GMT", "-0000", "-0500")]
    assert [wait - (waits[0] or 0) for wait in waits if wait] == pytest.approx([0, 0, 5 * 3600], abs=60)
