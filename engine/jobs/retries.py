"""Retries: whether another attempt follows one that failed, when, and what the model is told then.

An attempt counts as paid once the model had begun to answer: a piece of the reply came, a heartbeat or its usage. An
attempt that failed before that, by a refusal or without a connection, never reached a model and may be repeated often.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from turnwise.engine.clock import TIME_TOO_LATE
from turnwise.engine.settings import RetryPolicy
from turnwise.states.errors import REJECTED_REPLY, ModelError
from turnwise.states.facts import StepFacts

LONGEST_TIMEOUT: Final = 600.0
"""Seconds: a time limit doubles no further than this."""
SAME_REQUESTS: Final = 2
"""How often the same request is sent whose reply the provider rejects, before the model is told."""
_FOREVER: Final = 1e12
"""Seconds."""


class Verdict(msgspec.Struct, frozen=True):
    """What follows a failed attempt."""

    error: ModelError
    """The error to report; it says why no attempt follows, if a limit of the policy is the reason."""
    delay: float | None
    """Seconds until the next attempt; `None` if there is none."""


def verdict_on(policy: RetryPolicy, step: StepFacts, error: ModelError, *, paid: bool, now: datetime) -> Verdict:
    """Return what follows an attempt that failed after `step`'s earlier failures."""
    if not error.retryable:
        return Verdict(error, None)
    tried = step.failed(error.kind, paid=paid)
    wait = error.retry_after or 0.0
    if policy.max_retry_after is not None and wait > policy.max_retry_after:
        until = now + min(timedelta(seconds=min(wait, _FOREVER)), TIME_TOO_LATE - now)
        problem = (
            f"the provider asks for a wait of {min(wait, _FOREVER):.0f} s, until {until:%Y-%m-%d %H:%M:%S} UTC, and "
            f"RetryPolicy.max_retry_after is {policy.max_retry_after:g} s"
        )
        return Verdict(_because(error, problem), None)
    alike = tried.paid.get(error.kind, 0) if paid else 0
    if policy.alike is not None and alike >= policy.alike:
        return Verdict(_because(error, f"{alike} paid attempts failed alike (RetryPolicy.alike)"), None)
    if not policy.allows(tried.failures, sum(tried.paid.values())):
        return Verdict(error, None)
    return Verdict(error, policy.delay(tried.failures, wait))


def _because(error: ModelError, problem: str) -> ModelError:
    message = f"{error.message}; {problem}"
    told = ModelError(error.kind, error.retryable, error.retry_after, error.status, message=message)
    told.note, told.__cause__ = f"{problem[0].upper()}{problem[1:]}.", error.__cause__
    return told


def longer(limit: float | None, timeouts: int) -> float | None:
    """Return a time limit in seconds: it doubles after each attempt in a row that a time limit ended."""
    if limit is None:
        return None
    return max(limit, min(limit * 2.0 ** min(timeouts, 16), LONGEST_TIMEOUT))


def note_on_rejection(step: StepFacts) -> str | None:
    """Return what the model is told whose replies the provider rejects; `None` while the same request may do."""
    if step.paid.get(REJECTED_REPLY, 0) < SAME_REQUESTS:
        return None
    word = "" if step.rejected_as is None else f" ({step.rejected_as})"
    return (
        f"Your last replies did not arrive: the provider rejected them{word}. Answer again. If you call a tool, call "
        "one of those that you are offered, by its exact name, with one JSON object of arguments that fits its schema; "
        "write no code. Otherwise answer in plain text."
    )
