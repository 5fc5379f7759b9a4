"""Convert model replies to the state machine's records: parts, tool calls, partial replies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import is_
from typing import Any, Final

from msgspec.structs import replace

from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.prompt.history import is_blank
from turnwise.engine.tools.arguments import parse_error_in
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.engine.transactions.runtime import Runtime
from turnwise.providers.failures import classified
from turnwise.providers.protocol import Model, ModelPart, ModelReply, ModelRequest, ToolSpec
from turnwise.providers.reply_builder import parts_from_shown
from turnwise.providers.reply_outcome import ReplyOutcome, outcome_of
from turnwise.states.arguments import Origin, Partial
from turnwise.states.calls import ToolCall
from turnwise.states.facts import Facts
from turnwise.states.messages import Part, ToolCallPart, ToolResultPart
from turnwise.states.model_errors import ModelError
from turnwise.states.names import Executor
from turnwise.states.usage import Usage
from turnwise.states.values.digests import digest
from turnwise.states.values.plain import shown, type_name, well_formed

_CUT_OFF: Final = "Not run: your reply ended before the arguments of this call were complete"
_FORBIDDEN: Final = "Not run: tool_choice is 'none', so no tool may be called. Answer in words."
_REFUSED: Final = "Not run: the provider refused your reply, so none of its calls may run with its arguments"


async def generate_reply(model: Model, request: ModelRequest) -> ModelReply:
    """Return a complete reply of the model, or raise `ModelError`: the model failed, or returned something else."""
    with classified():
        reply: object = await model.generate(request)
    problem = f"the model's generate returned {type_name(reply)!r}; it has to return a ModelReply"
    if isinstance(reply, ModelReply):
        finish: object = reply.finish
        if isinstance(finish, ModelPart):
            return reply
        problem = f"the model's generate returned a ModelReply with finish {shown(finish)}; it has to be a ModelPart"
    raise ModelError("server_error", retryable=False, message=problem)


def complete_text(reply: ModelReply) -> str:
    """Return the text of a complete reply.

    Raises:
        ModelError: the provider refused or truncated the reply, or gave no known finish reason.
    """
    match outcome_of(reply.finish.stop_reason):
        case ReplyOutcome.refused:
            raise ModelError("content_filter", message="the provider refused to give the text")
        case ReplyOutcome.cut:
            raise ModelError("bad_request", message="the text was truncated")
        case ReplyOutcome.unknown:
            reason = finish_reason(reply.finish)
            ended = "without a finish reason" if reason is None else f"with unknown finish reason {shown(reason)}"
            raise ModelError("bad_request", message=f"the model stopped {ended}")
    return reply.text


def rejected_calls(reply: ModelReply, incomplete_call_ids: Collection[str]) -> dict[str, str]:
    """Return the calls that must not run because of the finish reason, each with the text for the model.

    A refused reply rejects every call. A truncated reply rejects calls with incomplete arguments, even if they were
    repaired. `parse_error_in` validates arguments of all replies.
    """
    outcome = outcome_of(reply.finish.stop_reason)
    if outcome is ReplyOutcome.complete:
        return {}
    why = _REFUSED if outcome is ReplyOutcome.refused else _CUT_OFF
    rejected = [call for call in reply.calls if outcome is ReplyOutcome.refused or call.call_id in incomplete_call_ids]
    faults = {call.call_id: parse_error_in(call.arguments) for call in rejected}
    return {call_id: f"{why}." if fault is None else f"{why}: they {fault}." for call_id, fault in faults.items()}


def forbidden_calls(reply: ModelReply, toolbox: Toolbox) -> dict[str, str]:
    """Return the calls that `tool_choice="none"` forbids, each with the text for the model."""
    answer = None if toolbox.answer is None else toolbox.answer.name
    return {call.call_id: _FORBIDDEN for call in reply.calls if call.name != answer}


def finish_reason(finish: ModelPart) -> str | None:
    """Return the finish reason of a reply: the provider's own, or else the model's."""
    metadata = finish.metadata if isinstance(finish.metadata, Mapping) else {}
    reason = metadata.get("reason", finish.stop_reason)
    return None if reason is None else well_formed(str(reason))


def split_calls(
    parts: Sequence[Part], facts: Facts, toolbox: Toolbox, *, rejected: Mapping[str, str] | None = None
) -> tuple[tuple[Part, ...], tuple[ToolCall, ...]]:
    """Return the parts without blank ones, and a record of each call among them that the provider does not execute.

    The part of a call names the executor of its record. The part of a call that asks for approval names `local`, while
    its record names the client, which answers first. Rejected calls are refused; a rejected call of the answer tool is
    dropped, so that the turn ends without an answer.
    """
    rejected = rejected or {}
    stored: list[Part] = []
    calls: list[ToolCall] = []
    for part in parts:
        if is_blank(part):
            continue
        if not isinstance(part, ToolCallPart) or part.executor is Executor.provider:
            stored.append(part)
            continue
        call = toolbox.plan_call(part, facts, len(calls), rejected=rejected.get(part.call_id))
        if call.answers and part.call_id in rejected:
            continue
        calls.append(call)
        executor = Executor.local if call.approval == "asked" else call.executor
        stored.append(part if part.executor is executor else replace(part, executor=executor))
    return tuple(stored), tuple(calls)


def build_origin(configuration: Configuration, request: ModelRequest) -> Origin:
    """Return the origin of a reply: agent, model, and digests of the parameters and tools."""
    model, parameters = configuration.model, dict(request.parameters)
    if request.answer_schema is not None:
        parameters["answer_schema"] = request.answer_schema
    return Origin(
        agent=configuration.agent,
        agent_version=configuration.version,
        model=well_formed(str(model.name)),
        provider=well_formed(str(model.provider)),
        parameters_digest=_digest_if_any(parameters),
        tools_digest=_digest_of(request.tools, configuration.toolbox),
    )


def _digest_of(tools: tuple[ToolSpec, ...], toolbox: Toolbox) -> str | None:
    """Return the digest of a request's tools. The last one is remembered: most requests have the very same tools."""
    for known, digest_of_known in toolbox.digested:
        if len(known) == len(tools) and all(map(is_, known, tools)):
            return digest_of_known
    made = _digest_if_any([_to_json(tool) for tool in tools])
    toolbox.digested[:] = [(tools, made)]
    return made


def _to_json(tool: ToolSpec) -> list[Any]:
    own = tool.definition
    ordinary = [tool.name, tool.description, dict(tool.schema)]
    return ordinary if own is None else [*ordinary, own.provider, dict(own.tool), list(own.betas)]


def _digest_if_any(value: Any) -> str | None:
    if not value:
        return None
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - takes long to import

    try:
        return digest(to_jsonable_python(value, inf_nan_mode="null"))
    except ValueError:  # a value that has no JSON gets no digest
        return None


def partial_reply(
    parts: Sequence[Part],
    facts: Facts,
    toolbox: Toolbox,
    *,
    usage: Usage | None = None,
    origin: Origin | None = None,
) -> Partial:
    """Return the record of the current attempt's incomplete reply: all parts but provider calls without a result."""
    answered = {part.call_id for part in parts if isinstance(part, ToolResultPart)}
    stored = [
        part
        for part in parts
        if not isinstance(part, ToolCallPart) or part.executor is not Executor.provider or part.call_id in answered
    ]
    parts, calls = split_calls(stored, facts, toolbox)
    return Partial(
        step=facts.step.number,
        attempt=facts.step.attempt,
        parts=parts,
        calls=calls,
        usage=usage,
        origin=origin,
    )


async def streamed_reply(runtime: Runtime, facts: Facts, attempt: HeldAttempt | None = None) -> Partial | None:
    """Return the part of the current attempt's reply that was streamed; `None` if no attempt is open.

    The lease holder also knows usage, model and hidden fields of the parts, and passes them as `attempt`.
    """
    step = facts.step
    if not step.attempt_open:
        return None
    events = await runtime.store.shown(facts.chat_id, step.number, step.attempt)
    toolbox = runtime.agents.toolbox(facts.profile)
    if attempt is None:
        return partial_reply(parts_from_shown(events), facts, toolbox)
    parts = parts_from_shown(events, attempt.reply)
    return partial_reply(parts, facts, toolbox, usage=attempt.usage, origin=attempt.origin)
