"""Puts errors of user code into words for the model and the clients."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Final

from turnwise.foreign import described, guarded, only_error_in, text_of
from turnwise.logger import logger
from turnwise.states.errors import ToolFailed, ToolOutcomeUnknown
from turnwise.states.output_limit import text_within
from turnwise.states.plain import of_kind, type_name

_LONGEST: Final = 2000
"""In bytes: what the default tells of an error."""
OUTCOME_UNKNOWN: Final = "The outcome is unknown: it may or may not have taken effect."


def describe_error(error: BaseException) -> str:
    """Return the type of an error and its message, which is cut where it is long: the default of `Settings`."""
    return text_within(described(error), _LONGEST)


def text_for_model(error: BaseException, describe: Callable[[BaseException], str]) -> str:
    """Return the text that model and clients see of an error.

    `ToolFailed` has its own text; `describe` words any other error. If that fails only the error's type is shown: a
    service may describe errors because they hold secrets.
    """
    if of_kind(error, ToolFailed):
        return text_of(error, otherwise="")
    text = in_words(error, describe)
    if leaves_outcome_unknown(error):
        return f"{text}{'' if text.endswith('.') else '.'} {OUTCOME_UNKNOWN}"
    return text


def leaves_outcome_unknown(error: BaseException) -> bool:
    """Return whether a tool that raised the error may have taken effect: what it waited for was cut off."""
    return of_kind(error, TimeoutError, CancelledError, ToolOutcomeUnknown)


def in_words(error: BaseException, describe: Callable[[BaseException], str]) -> str:
    """Return what `describe` says of an error of user code, or its type if that fails."""
    error = only_error_in(error)
    try:
        with guarded():
            description: object = describe(error)
        if of_kind(description, str) and (text := text_of(description, otherwise="")).strip():
            return text
        logger.warning("describe_error_failed", problem=f"it gave {type_name(description)}, where text is wanted")
    except Exception:  # noqa: BLE001 - whatever the embedding service's own code raises
        logger.exception("describe_error_failed")
    return type_name(error)
