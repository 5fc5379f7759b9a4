"""Finish reasons of providers: the stop reason that each means, and whether the reply may be used as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from turnwise.states.names import StopReason


class ReplyOutcome(StrEnum):
    """How a finished reply may be used."""

    complete = "complete"
    """The model finished. The text is the answer, and the calls run."""
    cut = "cut"
    """A limit ended the reply. The text is incomplete, and only calls with complete arguments run."""
    refused = "refused"
    """The provider stopped or withheld the reply. The text is no answer, and no call runs."""
    unknown = "unknown"
    """The finish reason is missing or not in the table. The reply is used like `cut`."""


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
"""The finish reasons of providers, in lower case, by stop reason. Any other, or none, means `StopReason.unknown`."""

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
"""The finish reasons of rejected replies: the reply is discarded, and the request is repeated."""

OUTCOMES: Final[Mapping[StopReason, ReplyOutcome]] = {
    StopReason.end_turn: ReplyOutcome.complete,
    StopReason.max_tokens: ReplyOutcome.cut,
    StopReason.content_filter: ReplyOutcome.refused,
    StopReason.unknown: ReplyOutcome.unknown,
}
"""The use of a reply, by its stop reason."""

_MEANINGS: Final = {word: reason for reason, words in FINISH_WORDS.items() for word in words}


def stop_reason_of(word: object) -> StopReason:
    """Return the stop reason of a provider's or model's finish reason, in upper or lower case."""
    return _MEANINGS.get(word.lower(), StopReason.unknown) if isinstance(word, str) else StopReason.unknown


def outcome_of(word: object) -> ReplyOutcome:
    """Return the use of a reply by its finish reason, or by the stop reason of its turn."""
    return OUTCOMES[stop_reason_of(word)]


def is_rejected(word: object) -> bool:
    """Whether a finish reason means that the provider rejected the reply."""
    return isinstance(word, str) and word.lower() in REJECTED_WORDS
