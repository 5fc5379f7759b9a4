"""Errors of model calls, and the kinds of errors by which a chat can fail."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Final, Literal, NamedTuple, cast

from turnwise.states.errors import TurnwiseError
from turnwise.states.values.plain import well_formed


class RefusedPart(NamedTuple):
    """What a provider refuses of a request: a message of it, a part of that, or a file of the result of a tool."""

    message_id: str
    part: int | None = None
    """Its place among the parts of the request's message; `None` for all of them."""
    file: int | None = None
    """Of the result of a tool, its place among the `attachments`; `None` for the whole result."""


class ModelError(TurnwiseError):
    """A model call failed. The retry policy decides what becomes of the text shown until then.

    `kind` is one of `ModelErrorKind`: `rate_limit`, `overloaded`, `server_error`, `network`, `startup_timeout`,
    `authentication`, `quota`, `bad_request`, `unknown_model`, `context_overflow`, `content_filter`, `invalid_answer`,
    `rejected_reply`. A model of yours may say others. `retry_after` is in seconds; `status` the HTTP status. Both may
    be given as headers spell them, and are `None` if that is no number: a malformed header fails no call.
    `timed_out`: a time limit of turnwise ended the call, and the next attempt gets a longer one. `finish_reason` is the
    provider's word for a `rejected_reply`; the model sees it.

    A `bad_request` may name what of the request's messages the provider has `refused`: the engine leaves that out, with
    a note in its place, and asks again.
    """

    note: str = ""
    """A sentence for clients, shown after the kind and the advice; `message` is for operators."""
    refused: tuple[RefusedPart, ...] = ()
    timed_out: bool = False
    finish_reason: str | None = None

    def __init__(  # noqa: PLR0913 - all that is known of a failure
        self,
        kind: ModelErrorKind | str,
        retryable: bool | None = None,  # noqa: FBT001 - the contract's order
        retry_after: float | None = None,
        status: int | None = None,
        *,
        message: str = "",
        refused: Iterable[RefusedPart] = (),
        timed_out: bool = False,
        finish_reason: str | None = None,
    ) -> None:
        number = _finite(status)
        self.kind = _text(kind)
        self.retryable = self.kind in RETRYABLE_KINDS if retryable is None else bool(retryable)
        self.retry_after = _finite(retry_after)
        self.status = int(number) if number is not None and number.is_integer() else None
        self.message = _text(message or self.kind.replace("_", " "))
        self.refused = tuple(one for one in refused if isinstance(one, RefusedPart))
        self.timed_out = timed_out
        self.finish_reason = None if finish_reason is None else _text(finish_reason)[:_LONGEST_WORD]
        super().__init__(f"the model call failed ({self.kind}): {self.message}")


ModelErrorKind = Literal[
    "rate_limit",
    "overloaded",
    "server_error",
    "network",
    "startup_timeout",
    "authentication",
    "quota",
    "bad_request",
    "unknown_model",
    "context_overflow",
    "content_filter",
    "invalid_answer",
    "rejected_reply",
]
"""The kinds of errors of model calls."""

OwnErrorKind = Literal["tool", "deps", "internal", "unreadable", "repaired"]
"""The kinds of errors of everything else that a chat can fail by."""

NOTHING_FOLDED: Final = "nothing_folded"
"""The kind of a compaction that folded nothing, because there was nothing to fold or the strategy did not want to."""
CONTEXT_OVERFLOW: Final = "context_overflow"
"""The prompt is longer than the model's context window."""
STARTUP_TIMEOUT: Final = "startup_timeout"
"""The model was silent for too long."""
INVALID_ANSWER: Final = "invalid_answer"
"""The answers did not have the form that the agent wants."""
REJECTED_REPLY: Final = "rejected_reply"
"""The model replied, and the provider rejected the reply: a call that it cannot read, for instance."""
INTERNAL: Final = "internal"
"""Turnwise or user code failed."""
UNREADABLE: Final = "unreadable"
"""A stored value cannot be read."""
REPAIRED: Final = "repaired"
"""The chat was repaired."""

RETRYABLE_KINDS: Final[frozenset[ModelErrorKind | Literal["stall"]]] = frozenset(
    {"rate_limit", "overloaded", "server_error", "network", STARTUP_TIMEOUT, REJECTED_REPLY, "stall"}
)
"""The kinds that may pass. Only models of one's own say `stall`: a stream that turnwise breaks off is `network`."""
FALLBACK_KINDS: Final[frozenset[str]] = RETRYABLE_KINDS - {REJECTED_REPLY}
"""The kinds after which another model is asked, if there is one: another provider may answer."""

_LONGEST_WORD: Final = 100


def _text(value: object) -> str:
    return well_formed(str.__str__(value) if isinstance(value, str) else str(value))


def _finite(value: object) -> float | None:
    try:
        number = float(cast("float", value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
