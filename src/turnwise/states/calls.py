"""Tool calls: a client's tools, the model's calls, and their results."""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final

from msgspec.structs import force_setattr, replace
from pydantic import AfterValidator, SkipValidation

from turnwise.states.errors import InvalidContent
from turnwise.states.messages import FilePart
from turnwise.states.names import OPEN_STATUSES, Approval, Approver, CallStatus, Crash, Executor, SubagentAction
from turnwise.states.values.digests import digest, guarded
from turnwise.states.values.limits import Description, Name, json_at_most
from turnwise.states.values.plain import CALLER_LIMITS, MODEL_LIMITS, JsonLimits, Misfit, plain, shown
from turnwise.states.values.values import CheckedCall, Counter, Json, Time, Value, unshared

_APPROVAL: Final = ("approved", "arguments", "reason")
"""What an answer to a call that asks for approval may say."""
_ERASED: Final = "Its arguments were erased."
_ERASED_AFTER_START: Final = "Its arguments were erased after it had been started."


class ClientTool(Value, metaclass=CheckedCall, frozen=True, omit_defaults=False):
    """A tool that the model may call and only the client can run."""

    name: Name
    """The tool's name."""
    description: Description
    """What the tool does; the model chooses by it."""
    input_schema: Annotated[dict[str, Any], AfterValidator(json_at_most(262_144))]
    """JSON schema of the arguments: an object schema."""
    deadline: float | None = None
    """Seconds the client has to answer; `None` waits for ever."""
    output_schema: Annotated[dict[str, Any], AfterValidator(json_at_most(262_144))] | None = None
    """JSON schema of its results, but for errors: one that does not fit is refused. `None` takes any."""


class ToolResult(Value, metaclass=CheckedCall, frozen=True):
    """A client's answer to one of its calls. `output` is any JSON value; the model sees the `attachments`, too."""

    call_id: str
    output: Annotated[Json, SkipValidation]
    is_error: bool = False
    attachments: tuple[FilePart, ...] = ()
    _limits: ClassVar[JsonLimits] = CALLER_LIMITS

    def __post_init__(self) -> None:
        try:
            force_setattr(self, "output", plain(self.output, self._limits))
        except Misfit as misfit:
            problem = f"the output of call {shown(self.call_id)} {misfit.problem}"
            raise InvalidContent(problem, argument="output") from None

    @property
    def digest(self) -> str:
        """The digest by which a repeated result is recognised. A file counts by its bytes, or by its address."""
        files = [(file.blob or _digest_of_file(file), file.media_type, file.name) for file in self.attachments]
        return digest([self.output, self.is_error, *([files] if files else [])])

    @property
    def approves(self) -> bool | None:
        """Whether the result approves a call that asks for approval; `None` if it is no such answer.

        `True` and `{"approved": true}` allow the call; `False`, `{"approved": false}` and an error do not, unless that
        says that it allows it.
        """
        verdict = self.output.get("approved") if isinstance(self.output, dict) else self.output
        if self.is_error:
            return None if verdict is True else False
        return verdict if isinstance(verdict, bool) else None

    @property
    def edits(self) -> object:
        """The arguments that the client gives an approved call instead of the model's; `None` if it changes none."""
        return self.output.get("arguments") if isinstance(self.output, dict) and not self.is_error else None

    @property
    def approval_problem(self) -> str | None:
        """What is wrong with the result as an answer to a call that asks for approval; `None` if nothing is."""
        if self.attachments or self.approves is None:
            answer = 'answer true, false, or {"approved": true or false}; an error denies, and approves nothing'
            return "it takes no attachments" if self.attachments else answer
        if self.is_error or not isinstance(self.output, dict):
            return None
        unknown = [key for key in self.output if key not in _APPROVAL]
        if unknown:
            return f"the answer may hold {', '.join(_APPROVAL)}; it held {unknown[0]!r:.100}"
        if "arguments" in self.output and not (self.approves and isinstance(self.edits, dict)):
            return "arguments are an object, and belong to an approval"
        if not isinstance(self.output.get("reason", ""), str):
            return "a reason is text"
        return None


class SubagentResult(ToolResult, frozen=True):
    """A subagent's answer to a call of its parent, within the limits of what models and tools write."""

    _limits: ClassVar[JsonLimits] = MODEL_LIMITS


class Answer(Value, frozen=True):
    """Proof of how a call was answered; stored for ever, so that a replay finds the first receipt."""

    digest: str
    """The salted digest of the answer; empty once the answer is erased."""
    receipt_id: str
    """The receipt of the submission."""
    at: Time
    """When it was stored."""
    salt: str = ""
    """Random text that the digest covers, so that it does not reveal the answer."""

    def is_for(self, digest: str) -> bool:
        """Whether this proves an answer of that digest, without salt: any, once the answer is erased."""
        return not self.digest or guarded(self.salt, digest) == self.digest


def _digest_of_file(file: FilePart) -> str | None:
    return file.url if file.data is None else sha256(b64decode(file.data)).hexdigest()


class ToolCall(Value, frozen=True, kw_only=True):
    """One tool call of a step and how far it has come."""

    call_id: str
    """The call's id, unique in its chat."""
    name: str
    """The tool's name."""
    arguments: dict[str, Any]
    """The arguments, as JSON."""
    executor: Executor
    """Who runs the call."""
    index: Counter
    """The place of the call in its step, from 0."""
    step: Counter
    """The step that asked for the call."""
    status: CallStatus = CallStatus.planned
    """How far the call has come."""
    crash: Crash = "at_most_once"
    """What becomes of the call if its worker crashes after the start."""
    stop_after: bool = False
    """Whether a success ends the turn."""
    answers: bool = False
    """Whether the call gives the turn's answer, as typed output (`Agent.output`)."""
    approval: Approval | None = None
    """While "asked", the client has to answer the call; once "granted", the call is local; `None` if none is needed."""
    approver: Approver = "operator"
    """Who may approve the call over HTTP. An operator always may."""
    asked_arguments: dict[str, Any] | None = None
    """The model's arguments, if the client allowed the call with other `arguments`."""
    refusal: str | None = None
    """Why the call is answered without being run: the tool was not offered, or the arguments do not fit."""
    reconciles: bool = False
    """Whether the tool is asked, after a crash, what became of the call."""
    subagent: str | None = None
    """The agent of the subagent that the call asks or starts."""
    subagent_action: SubagentAction = "ask"
    """For a call of a subagent: what it does."""
    subagent_detached: bool = False
    """Whether the subagent works on if the call is closed without its answer."""
    within: float | None = None
    """Seconds a client has to answer once asked."""
    output_limit_bytes: int = 65536
    """How many bytes of the result are stored."""
    agent: str | None = None
    """The agent that asked for the call; `None` if it is not known."""
    deadline: Time | None = None
    """When an open client call will be answered `timed_out`."""
    answer: Answer | None = None
    """How the call was answered by a client."""
    salt: str = ""
    """The salt of the call's digests in the log; erased with the arguments, and shown to no client."""

    @property
    def open(self) -> bool:
        """Whether the call has no result yet."""
        return self.status in OPEN_STATUSES

    @property
    def is_local(self) -> bool:
        """Whether turnwise runs the call."""
        return self.executor is Executor.local

    @property
    def is_client(self) -> bool:
        """Whether the client runs the call."""
        return self.executor is Executor.client

    @property
    def is_delegated(self) -> bool:
        """Whether a subagent, a chat of its own, answers the call."""
        return self.executor is Executor.chat

    @property
    def stops_its_subagent(self) -> bool:
        """Whether the call is open, and the subagent that it made has to be stopped if it is closed now."""
        return self.open and self.subagent is not None and not self.subagent_detached

    @property
    def may_start(self) -> bool:
        """Whether the call is a local one that has not started, or one that may safely run again."""
        if not self.is_local or not self.open:
            return False
        return self.status is CallStatus.planned or self.crash == "at_least_once"

    @property
    def may_be_undone(self) -> bool:
        """Whether the call was started, and its tool can be asked whether it took effect: if not, it may start."""
        return self.is_local and self.status is CallStatus.started and self.reconciles

    @property
    def has_lost_its_arguments(self) -> bool:
        """Whether they were erased after the call was started: it may have taken effect, and cannot run again."""
        return self.refusal == _ERASED_AFTER_START

    def is_due(self, now: datetime) -> bool:
        """Whether the call is open and its deadline has passed."""
        return self.open and self.deadline is not None and self.deadline <= now

    def with_status(self, status: CallStatus, answer: Answer | None = None) -> ToolCall:
        """Return the call moved on to `status`; a call that has ended has no deadline."""
        deadline = self.deadline if status in OPEN_STATUSES else None
        return replace(self, status=status, answer=answer or self.answer, deadline=deadline)

    @property
    def shown(self) -> ToolCall:
        """The call as a client may see it, with arguments of its own."""
        own: ToolCall = unshared(replace(self, salt=""))
        return own

    def blanked(self, *, arguments: bool, answer: bool) -> ToolCall:
        """Return the call without its arguments, or without the digest of its answer.

        If the client allowed it with other arguments it loses both, since they came with the answer. A call that
        turnwise has still to run is answered instead of run: without its arguments it would be another call.
        """
        arguments, answer = (True, True) if self.asked_arguments is not None else (arguments, answer)
        kept_answer = self.answer
        if answer and kept_answer is not None:
            kept_answer = replace(kept_answer, digest="", salt="")
        if not arguments:
            return replace(self, answer=kept_answer)
        is_wait_for_some = self.subagent_action == "wait" and bool(self.arguments)
        runs = self.open and (self.is_local or self.approval == "asked" or is_wait_for_some)
        refusal = None
        if runs or self.refusal is not None:
            ran = self.has_lost_its_arguments or (self.status is CallStatus.started and self.refusal is None)
            refusal = _ERASED_AFTER_START if ran else _ERASED
        return replace(self, arguments={}, asked_arguments=None, refusal=refusal, salt="", answer=kept_answer)

    def granted(self, answer: Answer, edited: dict[str, Any] | None = None) -> ToolCall:
        """Return the call as the client has allowed it: local, not started, with the arguments that it has edited."""
        return replace(
            self,
            executor=Executor.local,
            approval="granted",
            answer=answer,
            deadline=None,
            status=CallStatus.planned,
            arguments=self.arguments if edited is None else edited,
            asked_arguments=None if edited is None else self.arguments,
        )

    def asked_at(self, now: datetime, default: float | None) -> ToolCall:
        """Return the client call with its deadline counted from `now`."""
        seconds = self.within if self.within is not None else default
        deadline = None if seconds is None else now + timedelta(seconds=seconds)
        return replace(self, deadline=deadline)


class CallOutcome(Value, frozen=True, kw_only=True):
    """How a call ended, with the result that the model will see."""

    call_id: str
    status: CallStatus
    output: Json
    is_error: bool
    synthetic: bool = False
    attachments: tuple[Any, ...] = ()
    error: BaseException | None = None
    """The exception of the tool, for observers; it is not stored."""
    answer: Answer | None = None
