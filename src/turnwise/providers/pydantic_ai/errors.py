"""Classifies a provider's failures into the kinds on which the engine decides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpx2
import msgspec
from pydantic_ai import exceptions as theirs

from turnwise.foreign import text_of
from turnwise.logger import logger
from turnwise.providers.failures import failure_of, kind_of_status
from turnwise.providers.pydantic_ai.refused import inline_files, refused_parts, unreachable_files
from turnwise.states.messages import Message
from turnwise.states.model_errors import CONTEXT_OVERFLOW, ModelError, ModelErrorKind
from turnwise.states.values.plain import type_name

_KINDS: Final[tuple[tuple[type[Exception], ModelErrorKind], ...]] = (
    (theirs.ModelContextWindowExceededError, CONTEXT_OVERFLOW),
    (theirs.ModelAuthenticationError, "authentication"),
    (theirs.ModelNotFoundError, "unknown_model"),
    (theirs.ModelQuotaExceededError, "quota"),
    (theirs.ModelRateLimitError, "rate_limit"),
    (theirs.ModelUnavailableError, "overloaded"),
    (theirs.ModelServerError, "server_error"),
    (theirs.ModelConnectionError, "network"),
    (theirs.ModelRequestTimeout, "network"),
    (theirs.ModelRequestRejectedError, "bad_request"),
    (theirs.ContentFilterError, "content_filter"),
    (theirs.UnexpectedModelBehavior, "network"),  # what came is no reply: cut before it began, or of something between
)
"""The first that fits counts: a class stands before those it derives from."""

_FILTERS: Final = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "image_content_policy_violation",
        "bio_policy",
        "misalignment_policy_violation",
    }
)
_NEVER: Final = frozenset(
    {
        "invalid_prompt",
        "data_residency_mismatch",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "invalid_image_mode",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_file_too_large",
        "image_file_not_found",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
    }
)
"""Error codes of OpenAI's Responses API inside a stream, where no HTTP status says that the request is refused."""
_UNCLEAR: Final = frozenset({"bad_request", "server_error"})
"""Kinds as which providers report that a prompt is too long."""
_GONE: Final = frozenset({400, 401, 403, 404, 410, 451})
"""Statuses of an address without a file."""
_REFUSALS: Final = frozenset({RuntimeError, NotImplementedError, ValueError})
_LONGEST_MESSAGE: Final = 500
_TOO_LARGE: Final = 413
_REDIRECTS: Final = frozenset({300, 301, 302, 303, 307, 308})
_CODES: Final = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded", "request_too_large"}
)
_WORDS: Final = (
    "exceeds? (?:the )?context (?:length|limit|size|window)",  # Anthropic, OpenAI, Ollama
    "exceeds the available context size|context size has been exceeded",  # llama.cpp
    "prompt is too long|input is too long",  # Anthropic, Bedrock
    "prompt too long; exceeded",  # Ollama
    "input token count.{0,40}exceeds|exceeds the maximum number of tokens allowed",  # Gemini
    "maximum context length|model's maximum context limit",  # OpenAI, Mistral, OpenRouter, LiteLLM
    "maximum model length of",  # vLLM
    "input length .{0,40}exceeds the maximum (?:allowed input )?length",  # DeepSeek
    "(?:greater|longer) than the (?:model's )?context length",  # LM Studio, Together
    "maximum prompt length is",  # xAI
    "reduce the length of the messages|reduce your message size",  # Groq
    "context window exceeds limit",  # MiniMax
    "exceeded model token limit",  # Moonshot
    "prompt token count of .{0,40}exceeds the limit",  # Copilot
    "input tokens exceed the configured limit",  # OpenAI
    r"`inputs` tokens \+ `max_new_tokens` must be",  # Hugging Face
    "range of input length should be",  # Qwen
)
_SAYS_TOO_LONG: Final = re.compile("|".join(_WORDS))
_NO_SUCH_INPUT: Final = re.compile(r"\bsupport (?:image|audio|video|file|pdf)s? input\b")
"""How OpenRouter says, with status 404, that no provider of a model takes a kind of file."""
_LIMIT_AND_REQUESTED: Final = re.compile(r"request too large\b.*?\blimit (\d{1,15}), requested (\d{1,15})\b", re.DOTALL)
"""How OpenAI and Groq refuse one request that takes more tokens than an account has for a minute."""


class Exchange(msgspec.Struct):
    """A request to a provider, and its answer."""

    answered: bool = False
    """Whether the answer has started: a later failure is no refusal."""


@contextmanager
def writing() -> Iterator[None]:
    """Raise errors of writing a request as `ModelError`."""
    try:
        yield
    except (RuntimeError, ValueError) as refusal:
        raise ModelError("bad_request", message=_message(refusal)) from refusal


@contextmanager
def classified(messages: Sequence[Message] = ()) -> Iterator[Exchange]:
    """Raise the failure of a provider, or of its library, as a `ModelError`, with the refused parts of `messages`."""
    exchange = Exchange()
    try:
        yield exchange
    except Exception as failure:
        error = model_error(failure, answered=exchange.answered)
        if not exchange.answered and (files := unreachable_files(failure, messages)):
            raise ModelError("bad_request", message=error.message, refused=files) from failure
        exchange.answered |= error.kind == "network" and not _is_unanswered(failure)
        is_too_large = error.status == _TOO_LARGE and not _says_too_long(_provider_message(failure))
        if is_too_large and (files := inline_files(messages)):
            error = ModelError("bad_request", status=error.status, message=error.message, refused=files)
        elif error.kind == "bad_request":
            body = failure.body if isinstance(failure, theirs.ModelAPIError) else None
            text = f"{_provider_message(failure)}\n{failure}\n{json.dumps(body, default=str)}"
            error.refused = refused_parts(failure, text, messages)
        raise error from failure


def model_error(failure: Exception, *, answered: bool = False) -> ModelError:
    """Return the failure as the engine knows it: its kind, whether to try again, when, and the HTTP status."""
    if isinstance(failure, ModelError):
        return failure
    if (address := _redirected_to(failure)) is not None:
        problem = f"the provider's address redirects to {address!r}; configure that address"
        return ModelError("network", retryable=False, message=problem)
    status = failure.status_code if isinstance(failure, theirs.ModelHTTPError) else None
    kind = _kind(failure, status)
    if kind is None and (error := failure_of(failure)) is not None:
        return error
    # pydantic-ai refuses a request that the provider cannot take with `UserError` or a bare built-in error.
    if kind is None and (answered or not (isinstance(failure, theirs.UserError) or type(failure) in _REFUSALS)):
        return _unreadable(failure)
    retry_after = failure.retry_after if isinstance(failure, theirs.ModelAPIError) else None
    return ModelError(kind or "bad_request", retry_after=retry_after, status=status, message=_message(failure))


def _kind(failure: Exception, status: int | None) -> ModelErrorKind | None:
    """Return the kind of a failure that was reported; `None` if the library broke off."""
    if isinstance(failure, theirs.ModelAPIError) and failure.provider_error_code in _FILTERS:
        return "content_filter"
    kind = _reported_kind(failure)
    text = _provider_message(failure).lower()
    if kind == "unknown_model" and _NO_SUCH_INPUT.search(text):
        return "bad_request"
    figures = _LIMIT_AND_REQUESTED.search(text)
    if kind == "rate_limit" and figures is not None and int(figures[2]) > int(figures[1]):
        return CONTEXT_OVERFLOW  # this request alone exceeds the limit, however long one waits
    if kind in _UNCLEAR and isinstance(failure, theirs.ModelAPIError):
        is_coded = not _CODES.isdisjoint((failure.provider_error_code, failure.provider_error_type))
        if status == _TOO_LARGE or is_coded or _SAYS_TOO_LONG.search(text):
            return CONTEXT_OVERFLOW
    return kind


def _reported_kind(failure: Exception) -> ModelErrorKind | None:
    if isinstance(failure, httpx2.HTTPStatusError) and failure.response.status_code in _GONE:
        return "bad_request"  # a file's address, which pydantic-ai itself has asked for it
    for category, kind in _KINDS:
        if isinstance(failure, category):
            return kind
    if isinstance(failure, theirs.ModelHTTPError):
        return kind_of_status(failure.status_code)
    if isinstance(failure, theirs.ModelAPIError):
        if failure.provider_error_code in _NEVER:
            return "bad_request"
        return "server_error" if failure.in_stream else "network"
    return None


def _says_too_long(message: str) -> bool:
    """Whether the provider has counted tokens, and not bytes."""
    text = message.lower()
    return _SAYS_TOO_LONG.search(text) is not None or _LIMIT_AND_REQUESTED.search(text) is not None


def _redirected_to(failure: Exception) -> str | None:
    """Return the address to which the provider's redirects, which no client follows; `None` if it does not."""
    response: Any = getattr(failure.__cause__, "response", None)
    is_redirect = getattr(response, "status_code", None) in _REDIRECTS
    return response.headers.get("location") if is_redirect else None


def _is_unanswered(failure: Exception) -> bool:
    """Whether a failure is one of the connection, and not an answer that cannot be read."""
    if isinstance(failure, theirs.ModelHTTPError | theirs.ModelConnectionError | theirs.ModelRequestTimeout):
        return True
    return failure_of(failure) is not None or _redirected_to(failure) is not None


def _unreadable(failure: Exception) -> ModelError:
    """Return the error for an answer on which the library broke off; the log alone has all of the failure."""
    logger.exception("answer_unreadable", error=failure)
    return ModelError("network", message=f"the provider's answer could not be read: {type_name(failure)}")


def _message(failure: Exception) -> str:
    return _provider_message(failure)[:_LONGEST_MESSAGE]


def _provider_message(failure: Exception) -> str:
    """Return the provider's own message, without the wrapping; the whole text if there is none."""
    body: Any = failure.body if isinstance(failure, theirs.ModelAPIError) else None
    while isinstance(body, dict) and "error" in body:
        body = body["error"]
    text = body.get("message") if isinstance(body, dict) else None
    whole = failure.message if isinstance(failure, theirs.ModelAPIError) else text_of(failure, otherwise="")
    return str(text or whole or type_name(failure))
