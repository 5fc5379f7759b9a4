"""Texts of errors for the model, for clients and for operators.

Clients read the kind of the error and what to do. Operators also read the text of the provider or of the failed code.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Mapping
from datetime import timedelta
from math import ceil
from typing import Final

from turnwise.foreign import described, guarded, only_error_in, or_else, text_of
from turnwise.logger import logger
from turnwise.states.errors import ToolFailed, ToolOutcomeUnknown
from turnwise.states.model_errors import ModelError
from turnwise.states.values.limits import text_within
from turnwise.states.values.plain import type_name

_TEXT_LIMIT: Final = 2000
"""In bytes, without a `describe_error`."""
_LONGEST_WAIT_S: Final = 366 * 86400.0
OUTCOME_UNKNOWN: Final = "The outcome is unknown: it may or may not have taken effect."


Describe = Callable[[BaseException], str]
"""`Settings.describe_error`."""
_RETRY: Final = "Try again later."
_ASK: Final = "Ask the operator of this service."
_PUBLIC: Final[Mapping[str, str]] = {
    "rate_limit": f"The model's provider takes no more requests for now. {_RETRY}",
    "overloaded": f"The model's provider is overloaded. {_RETRY}",
    "server_error": f"The model's provider failed to answer. {_RETRY}",
    "network": f"The model's provider could not be reached, or its answer broke off. {_RETRY}",
    "startup_timeout": f"The model did not begin to answer in time. {_RETRY}",
    "authentication": f"The model's provider does not accept the credentials of this service. {_ASK}",
    "quota": f"The quota of this service at the model's provider is used up. {_ASK}",
    "bad_request": f"The model's provider does not accept the request. Edit the last message, or send another. {_ASK}",
    "unknown_model": f"The model's provider does not know the model. Choose another model. {_ASK}",
    "context_overflow": "The chat is longer than the model can read. Compact it, or begin another chat.",
    "content_filter": "The model's provider refused to answer. Edit the last message, or send another.",
    "rejected_reply": f"The model's provider rejects what the model answers. {_RETRY}",
    "nothing_folded": "There was nothing to compact.",
    "invalid_answer": "The model's answers did not have the form that the agent wants. Resume the chat to try again.",
    "deps": f"What the tools of the chat need could not be opened. {_RETRY}",
    "internal": f"Something failed inside of this service. {_ASK}",
    "unreadable": f"Something stored of the chat cannot be read. {_ASK}",
}
"""The texts for clients, by the kind of the error."""
_OTHER: Final = f"The model could not be asked. {_ASK}"


def public_text(kind: str, error: BaseException, describe: Describe | None) -> str:
    """Return the text for clients: that of `describe`, or else one by the kind of the error."""
    if describe is not None:
        return in_words(error, describe)
    text = _PUBLIC.get(kind, _OTHER)
    if not isinstance(error, ModelError):
        return text
    if error.retry_after is not None and error.retry_after > 0 and text.endswith(_RETRY):
        wait = timedelta(seconds=ceil(min(error.retry_after, _LONGEST_WAIT_S)))
        text = f"{text.removesuffix(_RETRY)}Try again in {wait}."
    return f"{text} {error.note}".rstrip()


def describe_error(error: BaseException) -> str:
    """Return the default text for the model: type and message, cut to `_TEXT_LIMIT`; for a `ModelError` by its kind."""
    if isinstance(error, ModelError):
        return or_else(lambda: _PUBLIC.get(error.kind, _OTHER), _OTHER)
    return text_within(described(error), _TEXT_LIMIT)


def private_text(error: BaseException) -> str:
    """Return the text for operators: type and message, cut to `_TEXT_LIMIT`."""
    return text_within(described(only_error_in(error)), _TEXT_LIMIT)


def text_for_model(error: BaseException, describe: Describe | None) -> str:
    """Return the text of a tool's error for the model and for clients.

    It is the message of a `ToolFailed`, and for other errors the result of `describe`. If `describe` fails, it is the
    error's type alone, because the message may hold secrets.
    """
    if isinstance(error, ToolFailed):
        return text_of(error, otherwise="")
    text = in_words(error, describe or describe_error)
    if leaves_outcome_unknown(error):
        return f"{text}{'' if text.endswith('.') else '.'} {OUTCOME_UNKNOWN}"
    return text


def leaves_outcome_unknown(error: BaseException) -> bool:
    """Whether a tool that raised the error may have taken effect."""
    return isinstance(error, TimeoutError | CancelledError | ToolOutcomeUnknown)


def in_words(error: BaseException, describe: Describe) -> str:
    """Return the result of `describe`, or the error's type if `describe` fails."""
    error = only_error_in(error)
    try:
        with guarded():
            description: object = describe(error)
        if isinstance(description, str) and (text := text_of(description, otherwise="")).strip():
            return text
        logger.warning("describe_error_failed", problem=f"it gave {type_name(description)}, where text is wanted")
    except Exception:  # noqa: BLE001 - user code
        logger.exception("describe_error_failed")
    return type_name(error)


class FailureLog:
    """Remembers failures by name, so that each is logged once, until it succeeds or fails differently."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def is_new(self, name: str, error: BaseException) -> bool:
        """Note a failure of that name; return whether it differs from the last one."""
        problem = described(error)
        was, self._problems[name] = self._problems.get(name), problem
        return was != problem

    def is_new_anywhere(self, name: str, error: BaseException) -> bool:
        """Note a failure as `is_new` does; return whether no other name has the same failure."""
        is_known = described(error) in self._problems.values()
        return self.is_new(name, error) and not is_known

    def succeeded(self, name: str) -> None:
        self._problems.pop(name, None)
