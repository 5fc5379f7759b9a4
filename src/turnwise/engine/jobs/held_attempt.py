"""A held attempt: a worker's data about the attempt that it began."""

from __future__ import annotations

import msgspec

from turnwise.engine.config.results import Spending
from turnwise.providers.reply_builder import ReplyBuilder
from turnwise.states.arguments import Origin
from turnwise.states.facts import StepFacts
from turnwise.states.usage import Usage


class HeldAttempt(msgspec.Struct, kw_only=True):
    """One try at a step, or at a summary, in the hands of the worker that began it."""

    step: int
    attempt: int
    reply: ReplyBuilder | None = None
    """The reply so far."""
    spending: Spending | None = None
    """The usage so far, of a summary."""
    origin: Origin | None = None
    """The model, with digests of its parameters and tools."""

    def is_of(self, step: StepFacts) -> bool:
        return (self.step, self.attempt) == (step.number, step.attempt)

    @property
    def usage(self) -> Usage | None:
        if self.reply is not None:
            return self.reply.reply().usage
        return None if self.spending is None else self.spending.usage
