"""The context window, and whether a compaction is due."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from turnwise.engine.config.settings import CompactionInput, ShouldCompact
from turnwise.engine.isolation.clock import time_limit
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.logger import logger
from turnwise.states.arguments import StepReply
from turnwise.states.messages import Message
from turnwise.states.turn_limits import compaction_is_on
from turnwise.states.values.values import unshared


class CompactionRule:
    """The rule of the application that may ask for a compaction, `CompactionPolicy.should_compact`."""

    def __init__(self, leased: LeasedChat) -> None:
        self._leased = leased

    async def judge(self, reply: StepReply) -> StepReply:
        """Return the reply with the rule's answer, if there is a rule and compaction is on.

        A rule that fails, or takes longer than `CompactionPolicy.timeout`, is logged and counts as "no": the reply must
        not be lost. So the caller commits it also after a cancellation.
        """
        policy, limit = self._leased.configuration.settings.compaction, reply.context_limit
        rule = policy.should_compact
        if rule is None or not compaction_is_on(self._leased.configuration.limits):
            self._warn_of_unknown_window(limit)
            return reply
        figures = CompactionInput(
            context_tokens=reply.context_tokens,
            context_limit=limit if limit is not None else self._leased.configuration.limits.context_limit,
            compactions=self._leased.facts.compaction.count,
            model=self._leased.configuration.model,
        )
        try:
            history = unshared(tuple((await self._leased.current_view()).messages))
            with time_limit(self._leased.runtime.clock, policy.timeout, "network", "no answer"):
                due = await self._leased.runtime.tasks.user_calls.run(
                    partial(_is_due, rule, history, figures), "should_compact", chat_id=self._leased.chat_id
                )
        except Exception:  # noqa: BLE001 - user code; the turn goes on
            logger.exception("should_compact_failed", step=self._leased.facts.step.number)
            due = False
        return replace(reply, should_compact=due)

    def _warn_of_unknown_window(self, limit: int | None) -> None:
        """Warn once per model whose window is unknown: nothing is folded before the provider refuses a prompt."""
        runtime, limits, model = (
            self._leased.runtime,
            self._leased.configuration.limits,
            self._leased.configuration.model,
        )
        key = (model.provider, model.name)
        unknown = limit is None and limits.context_limit is None and compaction_is_on(limits)
        if unknown and key not in runtime.warned_context_window:
            runtime.warned_context_window.add(key)
            logger.warning(
                "context_window_unknown",
                provider=model.provider,
                model=model.name,
                problem="no compaction is due before the provider refuses a prompt; set CompactionPolicy.context_limit",
            )


async def _is_due(rule: ShouldCompact, history: Sequence[Message], figures: CompactionInput) -> bool:
    due = rule(history, figures)
    return bool(await due if inspect.isawaitable(due) else due)
