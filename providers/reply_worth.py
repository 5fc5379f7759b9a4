"""What a reply is worth: the words by which providers say why it ended, and what any other word means."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from turnwise.states.names import StopReason


class Worth(StrEnum):
    """What a reply is worth, once it has ended."""

    complete = "complete"
    """The model was done: its text is the answer, its calls run."""
    cut = "cut"
    """A limit ended it: its text is no whole answer. Only calls with whole arguments run."""
    refused = "refused"
    """The provider ended or withheld it: its text is no answer, and none of its calls runs."""
    unknown = "unknown"
    """No word said why it ended, or one that is not in the table: it counts as cut."""


FINISH_WORDS: Final[Mapping[StopReason, tuple[str, ...]]] = {
    StopReason.end_turn: (
        "complete",
        "completed",
        "end_turn",
        "eos",
        "eos_token",
        "function_call",
        "stop",
        "stop_sequence",
        "tool_call",
        "tool_calls",
        "tool_use",
    ),
    StopReason.max_tokens: (
        "continuation",
        "length",
        "max_output_tokens",
        "max_tokens",
        "model_context_window_exceeded",
        "model_length",
    ),
    StopReason.content_filter: (
        "blocklist",
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "image_prohibited_content",
        "image_recitation",
        "image_safety",
        "model_armor",
        "prohibited_content",
        "recitation",
        "refusal",
        "safety",
        "sensitive",
        "spii",
    ),
}
"""The words that providers end replies with, in lower case, by the stop reason that they mean. Any other, and none at
all, means `StopReason.unknown`."""

REJECTED_WORDS: Final = frozenset(
    {
        "malformed_function_call",
        "malformed_response",
        "malformed_tool_call",
        "missing_thought_signature",
        "too_many_tool_calls",
        "unexpected_tool_call",
    }
)
"""The words by which a provider rejects a reply: none of it counts, and the model is asked again."""

WORTH: Final[Mapping[StopReason, Worth]] = {
    StopReason.end_turn: Worth.complete,
    StopReason.max_tokens: Worth.cut,
    StopReason.content_filter: Worth.refused,
    StopReason.unknown: Worth.unknown,
}
"""What a reply with each of a model's stop reasons is worth."""

_MEANINGS: Final = {word: reason for reason, words in FINISH_WORDS.items() for word in words}


def stop_reason_of(word: object) -> StopReason:
    """Return why a reply ended, by the word that its provider or model ended it with, in any case of letters."""
    return _MEANINGS.get(word.lower(), StopReason.unknown) if isinstance(word, str) else StopReason.unknown


def worth_of(word: object) -> Worth:
    """Return what a reply is worth that ended with this word; a turn's stop reason is such a word, too."""
    return WORTH[stop_reason_of(word)]


def is_rejected(word: object) -> bool:
    """Return whether the provider has rejected a reply that ended with this word."""
    return isinstance(word, str) and word.lower() in REJECTED_WORDS
