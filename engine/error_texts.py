"""Puts errors of user code into words for the model and the clients."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Final

from turnwise.engine.user_code import UserCodeError, described, guarded
from turnwise.logger import logger
from turnwise.states.errors import ToolFailed
from turnwise.states.output_limit import text_within
from turnwise.states.unicode import well_formed

_LONGEST: Final = 2000
"""In bytes: what the default tells of an error."""
_OUTCOME_UNKNOWN: Final = "The outcome is unknown: it may or may not have taken effect."


def describe_error(error: BaseException) -> str:
    """Return the type of an error and its message, which is cut where it is long: the default of `Settings`."""
    return text_within(described(error), _LONGEST)


def meant_by(error: BaseException) -> BaseException:
    """Return what was raised: of a group that holds one exception, as that of a task group may, this one."""
    error = error.raised if isinstance(error, UserCodeError) else error
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error


def message_of(error: BaseException) -> str:
    """Return what an error says; nothing if its own code fails at that."""
    try:
        with guarded():
            return well_formed(str(error))
    except Exception:  # noqa: BLE001 - whatever an error's code raises
        return ""


def text_for_model(error: BaseException, describe: Callable[[BaseException], str]) -> str:
    """Return the text that model and clients see of an error.

    `ToolFailed` has its own text; `describe` words any other error. If that fails only the error's type is shown: a
    service may describe errors because they hold secrets.
    """
    if isinstance(error, ToolFailed):
        return message_of(error)
    text = in_words(error, describe)
    cut_off = isinstance(error, TimeoutError | CancelledError)
    return f"{text}{'' if text.endswith('.') else '.'} {_OUTCOME_UNKNOWN}" if cut_off else text


def in_words(error: BaseException, describe: Callable[[BaseException], str]) -> str:
    """Return what `describe` says of an error of user code, or its type if that fails."""
    error = meant_by(error)
    try:
        with guarded():
            description: object = describe(error)
        if isinstance(description, str) and description.strip():
            return well_formed(description)
        logger.warning("describe_error_failed", problem=f"it gave {type(description).__name__}, where text is wanted")
    except Exception:  # noqa: BLE001 - whatever the embedding service's own code raises
        logger.exception("describe_error_failed")
    return type(error).__name__
