"""The context window: how large it is, and whether a compaction is due."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from msgspec.structs import replace

from turnwise.engine.config.settings import CompactionInput, ShouldCompact
from turnwise.engine.isolation.clock import time_limit
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.logger import logger
from turnwise.states.arguments import Reply
from turnwise.states.messages import Message
from turnwise.states.turn_limits import compaction_is_on
from turnwise.states.values.values import unshared


async def with_own_rule(leased: LeasedChat, reply: Reply) -> Reply:
    """Return the reply with the answer of the service's `should_compact`, if there is one and compaction is not off.

    A rule that fails, or takes longer than `CompactionPolicy.timeout`, is logged and counts as "no": the reply must not
    be lost. So the caller commits it, too, if the job is cancelled meanwhile.
    """
    policy, limit = leased.configuration.settings.compaction, reply.context_limit
    rule = policy.should_compact
    if rule is None or not compaction_is_on(leased.configuration.limits):
        _warn_of_unknown_window(leased, limit)
        return reply
    figures = CompactionInput(
        context_tokens=reply.context_tokens,
        context_limit=limit if limit is not None else leased.configuration.limits.context_limit,
        compactions=leased.facts.compaction.count,
        model=leased.configuration.model,
    )
    try:
        history = unshared(tuple((await leased.current_view()).messages))
        with time_limit(leased.runtime.clock, policy.timeout, "network", "no answer"):
            due = await leased.runtime.tasks.user_calls.run(
                lambda: _is_due(rule, history, figures), "should_compact", chat_id=leased.chat_id
            )
    except Exception:  # noqa: BLE001 - whatever a service's rule raises, the turn goes on
        logger.exception("should_compact_failed", step=leased.facts.step.number)
        due = False
    return replace(reply, should_compact=due)


async def _is_due(rule: ShouldCompact, history: Sequence[Message], figures: CompactionInput) -> bool:
    due = rule(history, figures)
    return bool(await due if inspect.isawaitable(due) else due)


def _warn_of_unknown_window(leased: LeasedChat, limit: int | None) -> None:
    """Warn once per model whose window is unknown: nothing is folded before the provider refuses a prompt."""
    runtime, limits, model = leased.runtime, leased.configuration.limits, leased.configuration.model
    key = (model.provider, model.name)
    unknown = limit is None and limits.context_limit is None and compaction_is_on(limits)
    if unknown and key not in runtime.warned_of:
        runtime.warned_of.add(key)
        logger.warning(
            "context_window_unknown",
            provider=model.provider,
            model=model.name,
            problem="no compaction is due before the provider refuses a prompt; set CompactionPolicy.context_limit",
        )
