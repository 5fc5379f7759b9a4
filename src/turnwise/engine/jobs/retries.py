"""Retries: decides about another attempt after a failed one, and writes the note that the model then gets.

An attempt counts as paid once the model has started to answer: with a piece of the reply, a heartbeat or its usage. An
attempt that failed earlier, by a refusal or without a connection, cost nothing and may be repeated often.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from turnwise.engine.config.settings import RetryPolicy
from turnwise.engine.isolation.clock import TIME_TOO_LATE
from turnwise.states.facts import StepFacts
from turnwise.states.messages import ModelFailure
from turnwise.states.model_errors import REJECTED_REPLY, RETRYABLE_KINDS, ModelError

LONGEST_TIMEOUT_S: Final = 600.0
"""A time limit doubles up to this."""
SAME_REQUESTS: Final = 2
"""After this many rejected replies the request changes: a note tells the model that they were rejected."""
_LONGEST_WAIT_S: Final = 1e12


class RetryDecision(msgspec.Struct, frozen=True):
    """The decision about another attempt."""

    error: ModelError
    """The error to report. It names the limit of the policy that prevents another attempt, if there is one."""
    delay: float | None
    """Seconds until the next attempt; `None` if no attempt follows."""
    from_first: bool = False
    """Whether it asks the agent's first model again, for all of them have failed."""


def decide_retry(
    policy: RetryPolicy,
    step: StepFacts,
    error: ModelError,
    *,
    paid: bool,
    now: datetime,
    failed_before: Sequence[ModelFailure] = (),
) -> RetryDecision:
    """Decide whether another attempt follows one that failed with `error`, after the earlier failures of `step`.

    The models that `failed_before` are asked again, too: one retryable failure suffices.
    """
    if not error.retryable and all(failure.kind not in RETRYABLE_KINDS for failure in failed_before):
        return RetryDecision(error, None)
    tried = step.failed(error.kind, paid=paid)
    wait = min([error.retry_after or 0.0, *(failure.retry_after or 0.0 for failure in failed_before)])
    if policy.max_retry_after is not None and wait > policy.max_retry_after:
        until = now + min(timedelta(seconds=min(wait, _LONGEST_WAIT_S)), TIME_TOO_LATE - now)
        problem = (
            f"the provider asks for a wait of {min(wait, _LONGEST_WAIT_S):.0f} s, "
            f"until {until:%Y-%m-%d %H:%M:%S} UTC, and RetryPolicy.max_retry_after is {policy.max_retry_after:g} s"
        )
        return RetryDecision(_because(error, problem), None)
    alike = tried.paid.get(error.kind, 0) if paid else 0
    if policy.alike is not None and alike >= policy.alike:
        return RetryDecision(_because(error, f"{alike} paid attempts failed alike (RetryPolicy.alike)"), None)
    if not policy.allows(tried.failures, sum(tried.paid.values())):
        return RetryDecision(error, None)
    return RetryDecision(error, policy.delay(tried.failures, wait), from_first=bool(failed_before))


def _because(error: ModelError, problem: str) -> ModelError:
    message = f"{error.message}; {problem}"
    explained = ModelError(error.kind, error.retryable, error.retry_after, error.status, message=message)
    explained.note, explained.__cause__ = f"{problem[0].upper()}{problem[1:]}.", error.__cause__
    return explained


def longer(limit: float | None, timeouts: int) -> float | None:
    """Return a time limit in seconds, doubled for each of the latest attempts that timed out."""
    if limit is None:
        return None
    return max(limit, min(limit * 2.0 ** min(timeouts, 16), LONGEST_TIMEOUT_S))


def note_on_rejection(step: StepFacts) -> str | None:
    """Return a note for a model whose replies the provider rejected; `None` below `SAME_REQUESTS` rejections."""
    if step.paid.get(REJECTED_REPLY, 0) < SAME_REQUESTS:
        return None
    word = "" if step.rejected_as is None else f" ({step.rejected_as})"
    return (
        f"Your last replies did not arrive: the provider rejected them{word}. Answer again. If you call a tool, call "
        "one of those that you are offered, by its exact name, with one JSON object of arguments that fits its schema; "
        "write no code. Otherwise answer in plain text."
    )
