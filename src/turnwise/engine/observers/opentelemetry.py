"""Traces for OpenTelemetry, by its conventions for generative AI.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from turnwise.engine.observers.observer import CompactionRun, Ended, ModelCall, Observer, ToolRun
from turnwise.extras import needing
from turnwise.foreign import qualified_type_name, text_of, traceback_of
from turnwise.providers.parameters import NAMES_IN_TRACES
from turnwise.states import triggers as t
from turnwise.states.calls import CallOutcome
from turnwise.states.decide import Decision
from turnwise.states.messages import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import StopReason
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked

with needing("observability", __name__):
    from opentelemetry import context, trace

    from turnwise.engine.observers.turn_spans import TurnSpan, nanoseconds

_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""The conventions' names of providers, where they differ."""

_COMPACTION: Final = context.create_key("turnwise compaction")
"""Marks a context in which a compaction's span is the current one."""


class OpenTelemetryObserver(Observer):
    """Makes a span `invoke_agent` of every turn, and below it `chat MODEL` and `execute_tool NAME` of calls and runs.

    An attempt that is made again is a `chat` of its own. A span `compact` holds the model calls of a summary. The
    turn's span stands below the span that was current where its message was sent. It is made where the turn ends: in
    another process, too.

    A span is current while its work runs, so that what an HTTP client or a tool traces becomes its child.

    Args:
        tracer_provider: OpenTelemetry's global one by default.
        record_content: whether spans hold content: messages, system prompt, arguments, results and the texts of errors.

    Raises:
        InvalidArgument: an argument is not what it may be.
    """

    @checked
    def __init__(self, tracer_provider: trace.TracerProvider | None = None, *, record_content: bool = False) -> None:
        self._provider = tracer_provider
        self._tracer = trace.get_tracer("turnwise", tracer_provider=tracer_provider)
        self._records_content = record_content

    def turn_trace(self, chat_id: str) -> str | None:  # noqa: ARG002 - the observer's signature
        """Begin the span of a turn; its ids are stored with the turn."""
        span = TurnSpan.start(self._tracer)
        return None if span is None else str(span)

    def transitioned(self, decision: Decision) -> None:
        turn = decision.ended
        if turn is None or (turn_span := TurnSpan.stored(turn.trace)) is None:
            return
        reason = "cut" if turn.ended_by is None and decision.trigger is t.EditMessage else turn.ended_by
        end = decision.facts.updated_at or decision.facts.profile.created_at
        tracer = trace.get_tracer("turnwise", tracer_provider=self._provider)
        started = min(turn.started_at or end, end)  # the clock may have been set back meanwhile
        span = turn_span.recorded(tracer, "invoke_agent", started, {"gen_ai.operation.name": "invoke_agent"})
        if span is None:
            return
        _set(
            span,
            {
                "gen_ai.conversation.id": decision.facts.chat_id,
                "gen_ai.usage.input_tokens": turn.usage.input_tokens,
                "gen_ai.usage.output_tokens": turn.usage.output_tokens,
                "turnwise.cost": _dollars(turn.usage),
                "turnwise.turn": turn.number,
                "turnwise.steps": turn.steps,
                "turnwise.stop_reason": str(reason or StopReason.end_turn),
            },
        )
        if reason is StopReason.error and decision.facts.last_error is not None:
            span.set_attribute("error.type", decision.facts.last_error.kind)
            span.set_status(trace.StatusCode.ERROR)
        span.end(nanoseconds(end))

    def model_called(self, call: ModelCall) -> Ended:
        request = call.request
        span = self._tracer.start_span(f"chat {call.model}", _above(call.trace), kind=trace.SpanKind.CLIENT)
        _set(
            span,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": _PROVIDERS.get(call.provider, call.provider),
                "gen_ai.request.model": call.model,
                "gen_ai.conversation.id": request.chat_id,
                **{called: request.parameters.get(name) for name, called in NAMES_IN_TRACES.items()},
                "turnwise.purpose": request.purpose,
                "turnwise.step": request.step,
                "turnwise.attempt": request.attempt,
                "turnwise.prompt.messages": len(request.messages),
                "turnwise.prompt.characters": call.characters,
                "turnwise.prompt.reminders": call.reminders or None,
            },
        )
        if self._records_content:
            messages = [{"role": message.role, "parts": _written_parts(message.parts)} for message in request.messages]
            _set(span, {"gen_ai.input.messages": _json(messages)})
            if request.system is not None:
                _set(span, {"gen_ai.system_instructions": _json([{"type": "text", "content": request.system}])})
        token = context.attach(trace.set_span_in_context(span))

        def end() -> None:
            context.detach(token)
            self._record_reply(span, call)
            _end(span, call.outcome)

        return end

    def compaction_started(self, run: CompactionRun) -> Ended:
        """Open the span of a compaction, below the turn's; the model calls made meanwhile come below it."""
        span = self._tracer.start_span("compact", _above(run.trace))
        _set(
            span,
            {
                "gen_ai.conversation.id": run.chat_id,
                "turnwise.compaction.strategy": run.strategy,
                "turnwise.compaction.messages_before": run.messages_before,
                "turnwise.step": run.step,
                "turnwise.attempt": run.attempt,
            },
        )
        token = context.attach(context.set_value(_COMPACTION, True, trace.set_span_in_context(span)))  # noqa: FBT003

        def end() -> None:
            context.detach(token)
            _set(
                span,
                {
                    "turnwise.compaction.outcome": run.outcome
                    if run.error is None or run.outcome == "declined"
                    else "failed",
                    "turnwise.compaction.messages_after": run.messages_after,
                },
            )
            _end(span, run.outcome)

        return end

    def tool_started(self, run: ToolRun) -> Ended:
        span = self._tracer.start_span(f"execute_tool {run.call.name}", _above(run.trace))
        _set(
            span,
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": run.call.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": run.call.call_id,
                "gen_ai.conversation.id": run.chat_id,
            },
        )
        if self._records_content:
            _set(span, {"gen_ai.tool.call.arguments": _json(run.call.arguments)})
        token = context.attach(trace.set_span_in_context(span))

        def end() -> None:
            context.detach(token)
            if self._records_content and isinstance(run.result, CallOutcome):
                _set(span, {"gen_ai.tool.call.result": _json(run.result.output)})
            if run.error is not None:
                self._record_error(span, run.error)
            _end(span, run.outcome)

        return end

    def _record_error(self, span: trace.Span, error: BaseException) -> None:
        """Record an error as the conventions say. Its text may be the tool's result, or quote the arguments."""
        attributes = {"exception.type": qualified_type_name(error)}
        if self._records_content:
            attributes["exception.message"] = text_of(error, otherwise="")
            attributes["exception.stacktrace"] = traceback_of(error)
        span.add_event("exception", attributes)

    def _record_reply(self, span: trace.Span, call: ModelCall) -> None:
        _set(span, {"gen_ai.response.time_to_first_chunk": call.first_part_after})
        if call.reply is None:
            return
        finish, usage = call.reply.finish, call.reply.usage
        metadata = {name: value for name, value in (finish.metadata or {}).items() if isinstance(value, str)}
        _set(
            span,
            {
                "gen_ai.response.model": metadata.get("response_model"),
                "gen_ai.response.id": metadata.get("response_id"),
            },
        )
        if finish.stop_reason is not None:
            _set(span, {"gen_ai.response.finish_reasons": [str(finish.stop_reason)]})
        if usage is not None:
            _set(
                span,
                {
                    "gen_ai.usage.input_tokens": usage.input_tokens,
                    "gen_ai.usage.output_tokens": usage.output_tokens,
                    "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                    "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
                    "turnwise.cost": _dollars(usage),
                },
            )
        if self._records_content:
            message = {
                "role": "assistant",
                "parts": _written_parts(call.reply.parts),
                "finish_reason": str(finish.stop_reason),
            }
            _set(span, {"gen_ai.output.messages": _json([message])})


def _above(stored: str | None) -> context.Context | None:
    """Return the context of the turn's span; `None`, the current one, without a turn or inside a compaction."""
    if context.get_value(_COMPACTION):
        return None
    turn_span = TurnSpan.stored(stored)
    return None if turn_span is None else turn_span.inside


def _dollars(usage: Usage) -> float | None:
    return None if usage.cost is None else float(usage.cost)


def _set(span: trace.Span, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        if value is not None:
            span.set_attribute(name, value)


def _end(span: trace.Span, outcome: str) -> None:
    if outcome != "succeeded":
        span.set_attribute("error.type", outcome)
        span.set_status(trace.StatusCode.ERROR)
    span.end()


def _written_parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case TextPart():
                entries.append({"type": "text", "content": part.text})
            case ReasoningPart():
                entries.append({"type": "reasoning", "content": part.text})
            case ToolCallPart():
                entries.append(
                    {"type": "tool_call", "id": part.call_id, "name": part.name, "arguments": part.arguments}
                )
            case ToolResultPart():
                entries.append({"type": "tool_call_response", "id": part.call_id, "response": part.output})
    return entries


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)  # orjson writes no integer above 64 bits
