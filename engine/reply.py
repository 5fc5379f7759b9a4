"""Replies, as the machine takes them: whose calls are whose, and what is kept of a reply that was cut short."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.engine.toolbox import Toolbox
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.joining import ReplyBuilder, parts_from_shown
from turnwise.states.arguments import Partial
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ModelError
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, StepFacts
from turnwise.states.messages import Part, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor
from turnwise.states.unicode import well_formed
from turnwise.states.usage import Usage


def with_executors(parts: Sequence[Part], facts: Facts) -> tuple[Part, ...]:
    """Return the parts; each call of a client tool says that the client runs it."""
    client_tools = {tool.name for tool in facts.profile.client_tools}
    return tuple(
        part.model_copy(update={"executor": Executor.client})
        if isinstance(part, ToolCallPart) and part.executor is Executor.local and part.name in client_tools
        else part
        for part in parts
    )


def calls_among(parts: Sequence[Part], facts: Facts, toolbox: Toolbox) -> tuple[ToolCall, ...]:
    """Return the local and client calls among the parts, as they are recorded before any of them starts."""
    client_tools = {tool.name: tool for tool in facts.profile.client_tools}
    calls: list[ToolCall] = []
    for part in parts:
        if not isinstance(part, ToolCallPart) or part.executor is Executor.provider:
            continue
        local, client = toolbox.tools.get(part.name), client_tools.get(part.name)
        asks = local is not None and client is None and local.policy == "ask"
        calls.append(
            ToolCall(
                call_id=part.call_id,
                name=part.name,
                arguments=part.arguments,
                executor=Executor.client if asks else part.executor,
                approval="asked" if asks else "not_needed",
                index=len(calls),
                step=facts.step.number,
                crash=local.crash if local is not None else "at_most_once",
                stop_after=local is not None and local.stop_after,
                within=client.deadline if client is not None else None,
            )
        )
    return tuple(calls)


def partial_reply(parts: Sequence[Part], facts: Facts, toolbox: Toolbox, *, usage: Usage | None = None) -> Partial:
    """Return what is kept of the current attempt's reply; a provider's call without its result is not."""
    answered = {part.call_id for part in parts if isinstance(part, ToolResultPart)}
    kept = with_executors(
        [
            part
            for part in parts
            if not isinstance(part, ToolCallPart) or part.executor is not Executor.provider or part.call_id in answered
        ],
        facts,
    )
    return Partial(
        step=facts.step.number,
        attempt=facts.step.attempt,
        parts=kept,
        calls=calls_among(kept, facts, toolbox),
        usage=usage,
    )


async def shown_reply(
    store: ChatStore, facts: Facts, toolbox: Toolbox, heard: ReplyBuilder | None = None
) -> Partial | None:
    """Return what subscribers were shown of the current attempt; `None` if no attempt is open.

    Who `heard` the attempt also knows what it used, and what is not shown of its parts.
    """
    step = facts.step
    if not step.attempt_open:
        return None
    shown = await store.shown(facts.chat_id, step.number, step.attempt)
    usage = heard.reply().usage if heard is not None else None
    return partial_reply(parts_from_shown(shown, heard), facts, toolbox, usage=usage)


def error_info(error: Exception, step: StepFacts) -> ErrorInfo:
    """Return an error in the words of events and `last_error`."""
    if isinstance(error, ModelError):
        return ErrorInfo(
            kind=error.kind,
            message=well_formed(error.message),
            step=step.number,
            attempt=step.attempt,
            retryable=error.retryable,
            status=error.status,
        )
    return ErrorInfo(
        kind="internal",
        message=well_formed(f"step {step.number}: {type(error).__name__}: {error}"),
        step=step.number,
        attempt=step.attempt,
    )
