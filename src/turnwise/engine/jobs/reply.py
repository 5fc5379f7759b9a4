"""Turns replies into what the machine stores: parts, planned calls, and what there is of a reply that was cut short."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from turnwise.engine.agents.answer_format import AnswerFormat
from turnwise.engine.agents.configuration import Configuration
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.error_texts import private_text, public_text
from turnwise.engine.jobs.held_attempt import HeldAttempt
from turnwise.engine.prompt.history import is_blank
from turnwise.engine.tools.arguments import BadArguments, fault_in
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.engine.transactions.runtime import Runtime
from turnwise.providers.failures import classified
from turnwise.providers.protocol import Model, ModelPart, ModelReply, ModelRequest, ToolSpec
from turnwise.providers.reply_builder import parts_from_shown
from turnwise.providers.reply_outcome import ReplyOutcome, outcome_of
from turnwise.states.arguments import Origin, Partial
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, StepFacts
from turnwise.states.messages import Part, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.model_errors import INTERNAL, UNREADABLE, ModelError
from turnwise.states.names import Executor
from turnwise.states.usage import Usage
from turnwise.states.values.digests import digest
from turnwise.states.values.limits import text_within
from turnwise.states.values.plain import shown, type_name, well_formed

_CUT_OFF: Final = "Not run: your reply ended before the arguments of this call were complete"
_REFUSED: Final = "Not run: the provider refused your reply, so none of its calls may run with its arguments"


async def generated(model: Model, request: ModelRequest) -> ModelReply:
    """Return a whole reply of the model.

    Raises:
        ModelError: it failed, or returned something else.
    """
    with classified():
        reply: object = await model.generate(request)
    problem = f"the model's generate returned {type_name(reply)!r}; it has to return a ModelReply"
    if isinstance(reply, ModelReply):
        finish: object = reply.finish
        if isinstance(finish, ModelPart):
            return reply
        problem = f"the model's generate returned a ModelReply with finish {shown(finish)}; it has to be a ModelPart"
    raise ModelError("server_error", retryable=False, message=problem)


def whole_text(reply: ModelReply) -> str:
    """Return the text of a reply, which is to be all that the model was asked for.

    Raises:
        ModelError: the provider refused to give it, cut it short, or did not say that it is whole.
    """
    match outcome_of(reply.finish.stop_reason):
        case ReplyOutcome.refused:
            raise ModelError("content_filter", message="the provider refused to give the text that was asked for")
        case ReplyOutcome.cut:
            raise ModelError("bad_request", message="the text that was asked for was cut short")
        case ReplyOutcome.unknown:
            word = finish_word(reply.finish)
            ended = "without a reason" if word is None else f"with {shown(word)}, which is not known to be a good end"
            raise ModelError("bad_request", message=f"the text that was asked for ended {ended}")
    return reply.text


def withheld_calls(reply: ModelReply, unfinished: Collection[str]) -> dict[str, str]:
    """Return the calls that may not run because of how their reply ended, each with the text for the model.

    Of a refused reply that is every call. Of one that was cut, or ended in an unknown way, it is each that is
    `unfinished`, be it mended or not. What no reply may run, however it ended, `fault_in` says of the arguments.
    """
    outcome = outcome_of(reply.finish.stop_reason)
    if outcome is ReplyOutcome.complete:
        return {}
    why = _REFUSED if outcome is ReplyOutcome.refused else _CUT_OFF
    withheld = [call for call in reply.calls if outcome is ReplyOutcome.refused or call.call_id in unfinished]
    faults = {call.call_id: fault_in(call.arguments) for call in withheld}
    return {call_id: f"{why}." if fault is None else f"{why}: they {fault}." for call_id, fault in faults.items()}


def finish_word(finish: ModelPart) -> str | None:
    """Return the word with which the provider ended a reply: its own, or that of the model."""
    metadata = finish.metadata if isinstance(finish.metadata, Mapping) else {}
    word = metadata.get("reason", finish.stop_reason)
    return None if word is None else well_formed(str(word))


def planned(
    parts: Sequence[Part], facts: Facts, toolbox: Toolbox, *, withheld: Mapping[str, str] | None = None
) -> tuple[tuple[Part, ...], tuple[ToolCall, ...]]:
    """Return the parts without the blank ones, and records of the local and client calls among them, not started yet.

    The part of a client call names the client as its executor, unless the call is refused. Calls that are `withheld`
    are refused; one that was to give the turn's answer is left out, so that the turn ends without one.
    """
    withheld = withheld or {}
    planned_parts: list[Part] = []
    calls: list[ToolCall] = []
    for part in parts:
        if is_blank(part):
            continue
        if not isinstance(part, ToolCallPart) or part.executor is Executor.provider:
            planned_parts.append(part)
            continue
        call = toolbox.planned(part, facts, len(calls), withheld=withheld.get(part.call_id))
        if call.answers and part.call_id in withheld:
            continue
        calls.append(call)
        executor = Executor.local if call.approval == "asked" else call.executor
        planned_parts.append(part if part.executor is executor else replace(part, executor=executor))
    return tuple(planned_parts), tuple(calls)


def origin_of(configuration: Configuration, request: ModelRequest) -> Origin:
    """Return which model is asked, in which agent's name, with digests of the parameters and tools."""
    model, parameters = configuration.model, dict(request.parameters)
    if request.answer_schema is not None:
        parameters["answer_schema"] = request.answer_schema
    offered = [_as_offered(tool) for tool in request.tools]
    return Origin(
        agent=configuration.agent,
        agent_version=configuration.version,
        model=well_formed(str(model.name)),
        provider=well_formed(str(model.provider)),
        parameters_digest=_digest_if_any(parameters),
        tools_digest=_digest_if_any(offered),
    )


def _as_offered(tool: ToolSpec) -> list[Any]:
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
    """Return what to keep of the current attempt's reply: all parts but provider calls without a result."""
    answered = {part.call_id for part in parts if isinstance(part, ToolResultPart)}
    stored = [
        part
        for part in parts
        if not isinstance(part, ToolCallPart) or part.executor is not Executor.provider or part.call_id in answered
    ]
    parts, calls = planned(stored, facts, toolbox)
    return Partial(
        step=facts.step.number,
        attempt=facts.step.attempt,
        parts=parts,
        calls=calls,
        usage=usage,
        origin=origin,
    )


async def shown_reply(runtime: Runtime, facts: Facts, attempt: HeldAttempt | None = None) -> Partial | None:
    """Return what subscribers were shown of the current attempt; `None` if no attempt is open.

    The holder that runs the `attempt` also knows its usage, its model, and fields of its parts that are not shown.
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


def lacks_form(answer: AnswerFormat | None, request: ModelRequest, parts: Sequence[Part]) -> bool:
    """Whether a reply without calls is no answer in the form that is wanted."""
    if answer is None or request.answer_schema is None:
        return answer is not None
    try:
        answer.arguments_in("".join(part.text for part in parts if isinstance(part, TextPart)))
    except BadArguments:
        return True
    return False


def never_answered(refused: int) -> str:
    """Return the error text of a turn whose answers were refused."""
    return f"{refused} answers did not have the form that the agent wants (Settings.answer_retries)"


def error_info(error: BaseException, step: StepFacts, settings: Settings) -> ErrorInfo:
    """Return an error as the chat holds it: what clients read of it, and what operators do.

    With a `Settings.describe_error`, what user code raised is in the log alone: it may hold secrets.
    """
    describe, model_error = settings.describe_error, error if isinstance(error, ModelError) else None
    kind = INTERNAL if model_error is None else model_error.kind
    detail: str | None = None
    if isinstance(error, ChatUnreadable):
        kind, describe = UNREADABLE, None
        where = f"step {step.number}: {error.column} of chat {error.chat_id!r} cannot be read: {error.problem}"
        detail = f"{where}; `turnwise doctor` says what can be done"
    elif model_error is not None:
        detail = model_error.message
    elif describe is None:
        detail = f"step {step.number}: {private_text(error)}"
    text = public_text(kind, error, describe)
    if describe is not None and model_error is None:
        text = f"step {step.number}: {text}"
    limit = settings.output_limit_bytes
    return ErrorInfo(
        kind=kind,
        message=text_within(well_formed(text), limit),
        step=step.number,
        attempt=step.attempt,
        retryable=model_error is not None and model_error.retryable,
        status=None if model_error is None else model_error.status,
        detail=None if detail is None else text_within(well_formed(detail), limit),
    )
