"""The toolbox: the tools of an engine, as the model sees them and as they run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from turnwise.engine.blobs.files import append_notes
from turnwise.engine.config.settings import Settings
from turnwise.engine.isolation.error_texts import leaves_outcome_unknown, text_for_model
from turnwise.engine.isolation.user_code import in_thread, was_cancelled
from turnwise.engine.tools.arguments import BadArguments, parse_error_in, schema_of, validate
from turnwise.engine.tools.context import ToolContext, ToolOutput
from turnwise.engine.tools.declare import Reconciled, Tool
from turnwise.foreign import guarded, only_error_in, text_of
from turnwise.logger import logger
from turnwise.providers.protocol import ToolSpec
from turnwise.states.actions.calls import UNKNOWN_TEXT
from turnwise.states.calls import CallOutcome, ClientTool, ToolCall
from turnwise.states.errors import FatalToolError, InvalidContent, SettingsError, ToolFailed, ToolOutcomeUnknown
from turnwise.states.facts import Facts, Profile
from turnwise.states.files import bytes_in
from turnwise.states.messages import FilePart, ToolCallPart, inlined
from turnwise.states.names import CallStatus, Executor
from turnwise.states.values.digests import as_json
from turnwise.states.values.plain import copied, type_name, well_formed

CLIENT_PREFIX: Final = "client:"
"""Before the name of a client's tool among the active ones."""

_LONGEST_NAME: Final = 64
_ERASED: Final = "Not run: its arguments were erased before it had taken effect."


class Toolbox(msgspec.Struct, frozen=True):
    """Local tools by name, and the rules by which they run.

    Raises:
        SettingsError: the settings name an active tool that there is not, nor can come.
    """

    tools: Mapping[str, Tool]
    settings: Settings
    answer: Tool | None = None
    """The one of them by which the model gives its answer: it is always active."""
    retired: frozenset[str] = frozenset()
    """Tools that their sources no longer offer: models are not offered them either."""
    may_change: bool = False
    """Whether some come from sources, which may have others tomorrow."""
    digested: list[tuple[tuple[ToolSpec, ...], str | None]] = msgspec.field(default_factory=list)
    """The tools of the last request, and their digest."""

    def __post_init__(self) -> None:
        for name in () if self.may_change else self.settings.active_tools or ():
            if name not in self.tools and not name.startswith(CLIENT_PREFIX):
                names = ", ".join(sorted(self.tools)) or "none"
                raise SettingsError(
                    "active_tools",
                    f"there is no tool named {name!r}; tools: {names}; a client's tool NAME is called "
                    f"{CLIENT_PREFIX}NAME here",
                )

    def list_offered(self, client_tools: Sequence[ClientTool], *, with_answer: bool = True) -> tuple[ToolSpec, ...]:
        """Return the tools to offer to the model: local ones, then the client's.

        Without `with_answer` the answer tool is left out; if it is called, it runs.
        """
        local = [tool for tool in self.tools.values() if with_answer or tool is not self.answer]
        specs = [tool.spec for tool in local if self._is_active(tool)]
        specs += [
            ToolSpec(tool.name, tool.description, tool.input_schema)
            for tool in self._of_client(client_tools)
            if self._is_active(tool)
        ]
        return tuple(specs)

    def tool_for(self, name: str, client_tools: Sequence[ClientTool]) -> Tool | ClientTool | None:
        """Return the tool of that name that is offered in a chat; `None` if none is."""
        declared = {tool.name: tool for tool in self._of_client(client_tools)}
        tool = self.tools.get(name) or declared.get(name)
        return tool if tool is not None and self._is_active(tool) else None

    def _of_client(self, client_tools: Sequence[ClientTool]) -> list[ClientTool]:
        """Return the client's tools without those that share a name with a local one, which may need an approval.

        Such tools are refused when a chat is created or changes its agent, but an agent may get a tool later.
        """
        return [tool for tool in client_tools if tool.name not in self.tools]

    def argument_schemas(self, calls: Iterable[ToolCall], client_tools: Sequence[ClientTool]) -> dict[str, Any]:
        """Return the JSON schemas of calls' arguments, by tool, active or not."""
        declared = {tool.name: tool for tool in client_tools}
        schemas: dict[str, Any] = {}
        for call in calls:
            by_the_client = call.is_client and call.approval is None
            tool = declared.get(call.name) if by_the_client else self.tools.get(call.name)
            if tool is not None:
                schemas[call.name] = schema_of(tool)
        return schemas

    def plan_call(self, part: ToolCallPart, facts: Facts, index: int, *, rejected: str | None = None) -> ToolCall:
        """Return the record of a local or client call, as it is stored before the call starts.

        Decides refusals once, for every worker that may continue. It refuses a call of an unknown tool, a client call
        with invalid arguments, and a call that is `rejected` because of the reply's finish reason.
        """
        client_tools = facts.profile.client_tools
        tool = self.tool_for(part.name, client_tools)
        local = tool if isinstance(tool, Tool) else None
        asks = local is not None and local.policy == "ask"
        refusal = rejected or self._refusal(part, tool, facts.profile)
        action = local.subagent_action if local is not None and refusal is None else None
        for_client = refusal is None and (asks or isinstance(tool, ClientTool))
        executor = Executor.client if for_client else Executor.local if action is None else Executor.chat
        return ToolCall(
            call_id=part.call_id,
            name=part.name,
            arguments=copied(part.arguments),
            executor=executor,
            approval="asked" if asks and refusal is None else None,
            approver="operator" if local is None else local.approver,
            index=index,
            step=facts.step.number,
            crash="at_least_once" if refusal is not None else local.crash if local is not None else "at_most_once",
            stop_after=local is not None and local.stop_after,
            answers=local is not None and local is self.answer,
            refusal=refusal,
            reconciles=refusal is None and local is not None and local.reconcile is not None,
            subagent=local.subagent if local is not None and action is not None else None,
            subagent_action=action or "ask",
            subagent_detached=local is not None and action is not None and local.subagent_detached,
            within=tool.deadline if isinstance(tool, ClientTool) else None,
            output_limit_bytes=self.settings.output_limit_bytes,
        )

    def _refusal(self, part: ToolCallPart, tool: Tool | ClientTool | None, profile: Profile) -> str | None:
        if tool is None:
            return self._unknown(part.name, profile.client_tools)
        if isinstance(tool, Tool) and tool.subagent is not None and profile.depth >= self.settings.subagent_depth:
            return f"Not done: subagents stand {self.settings.subagent_depth} deep at most. Do it yourself."
        runs_directly = isinstance(tool, Tool) and tool.policy == "auto" and tool.subagent_action is None
        if runs_directly and parse_error_in(part.arguments) is None:
            return None  # it is checked as it runs
        try:
            validate(tool, part.arguments)
        except BadArguments as error:
            return str(error)
        return None

    def _unknown(self, name: str, client_tools: Sequence[ClientTool] = ()) -> str:
        every: list[Tool | ClientTool] = [*self.tools.values(), *client_tools]
        names = ", ".join(sorted({tool.name for tool in every if self._is_active(tool)})) or "none"
        return f"There is no tool named {name[:_LONGEST_NAME]!r}. Tools: {names}."

    def _is_active(self, tool: Tool | ClientTool) -> bool:
        if tool is self.answer:
            return True
        if isinstance(tool, Tool) and tool.name in self.retired:
            return False
        active = self.settings.active_tools
        return active is None or (CLIENT_PREFIX if isinstance(tool, ClientTool) else "") + tool.name in active

    @property
    def inactive(self) -> frozenset[str]:
        """The names of the local tools that are not offered."""
        return frozenset(name for name, tool in self.tools.items() if not self._is_active(tool))

    def first_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Return the calls to start as soon as the chat executes tools: one, or a batch that may run in parallel.

        They end before a call that a crash cut off, which its tool reconciles first.
        """
        local = [call for call in calls if call.is_local]
        first = [call for call in local if call.open][: self.width(local)]
        return tuple(takewhile(lambda call: call.status is CallStatus.planned, first))

    def width(self, calls: Sequence[ToolCall]) -> int:
        """Return the number of calls of a batch that may run at once: several only if every call is safe."""
        safe = {tool.name for tool in self.tools.values() if tool.parallel_safe}
        all_are_safe = all(call.refusal is not None or call.name in safe for call in calls)
        return self.settings.parallel_cap if self.settings.tools_parallel == "all" or all_are_safe else 1

    def timeout(self, call: ToolCall) -> float | None:
        tool = self.tools.get(call.name)
        return tool.timeout if tool is not None and tool.timeout is not None else self.settings.tool_timeout

    async def run(self, call: ToolCall, context: ToolContext[Any], begins: Callable[[], object]) -> CallOutcome:
        """Run a call and return its outcome for the model; only a `FatalToolError` is raised.

        Once `context.cancelled` is true, the tool no longer begins. `begins` is called as it begins, perhaps in a
        thread.
        """
        tool = self.tools.get(call.name)
        if call.refusal is not None:
            return failed(call, call.refusal)
        # An approved call runs, even if its tool is not offered any more.
        if tool is None or not (call.approval == "granted" or self._is_active(tool)):
            return failed(call, self._unknown(call.name))
        if tool.policy == "ask" and call.approval != "granted":
            return failed(
                call, f"Not run: {call.name} needs the user's approval, and was not asked for. Call it again."
            )
        try:
            with guarded():
                arguments = validate(tool, copied(call.arguments))
                if tool.context_parameter is not None:
                    arguments[tool.context_parameter] = context
                return await _call_tool(tool, arguments, context, begins, partial(self._build_success, call))
        except BadArguments as error:
            return failed(call, str(error))
        except Exception as error:  # noqa: BLE001 - the model gets a tool's error as a result
            raised = only_error_in(error)
        if isinstance(raised, FatalToolError):
            raise raised
        return self.failure(call, raised)

    def failure(self, call: ToolCall, error: BaseException) -> CallOutcome:
        """Return the outcome of a tool's error for the model; log its traceback, or only the text of a `ToolFailed`."""
        if isinstance(error, ToolFailed):
            logger.info(
                "tool_failed", tool=call.name, call_id=call.call_id, problem=text_of(error, otherwise="")[:2000]
            )
        elif not (isinstance(error, asyncio.CancelledError) and was_cancelled()):
            logger.exception("tool_failed", error=error, tool=call.name, call_id=call.call_id)
        text = text_for_model(error, self.settings.describe_error)
        status = CallStatus.unknown if leaves_outcome_unknown(error) else CallStatus.failed
        return replace(failed(call, text, status), error=error)

    async def after_crash(self, call: ToolCall, context: ToolContext[Any]) -> CallOutcome | Reconciled:
        """Return the outcome of a started call whose process is gone, or the verdict that lets it run again.

        The tool's `reconcile` runs first. If it does not know, or fails, the call's crash policy decides.
        """
        found = await self._reconcile(call, context)
        if isinstance(found, CallOutcome):
            return found
        if found.verdict == "not_done":
            return failed(call, _ERASED) if call.has_lost_its_arguments else found
        return self.apply_crash_policy(call)

    def apply_crash_policy(self, call: ToolCall) -> CallOutcome | Reconciled:
        """Return the outcome of a call of unknown fate by its crash policy, or that it runs again."""
        may_run_again = call.crash == "at_least_once" and not call.has_lost_its_arguments
        return Reconciled.unknown() if may_run_again else failed(call, UNKNOWN_TEXT, CallStatus.unknown)

    async def _reconcile(self, call: ToolCall, context: ToolContext[Any]) -> CallOutcome | Reconciled:
        tool, never_ran = self.tools.get(call.name), call.refusal is not None and not call.has_lost_its_arguments
        if tool is None or tool.reconcile is None or never_ran:
            return Reconciled.unknown()
        try:
            with guarded():
                answer: Any = tool.reconcile(context)
                answer = await answer if inspect.isawaitable(answer) else answer
            if not isinstance(answer, Reconciled):
                answer = Reconciled.unknown() if answer is None else Reconciled.done(answer)
            return self._build_success(call, answer.output) if answer.verdict == "done" else answer
        except Exception:  # noqa: BLE001 - as in `run`
            logger.exception("reconcile_failed", tool=call.name, call_id=call.call_id)
            return Reconciled.unknown()

    def _build_success(self, call: ToolCall, returned: Any) -> CallOutcome:
        """Return the outcome of a tool that has run. A fault in its answer becomes a note, not a failure."""
        result = returned if isinstance(returned, ToolOutput) else ToolOutput(returned)
        notes: list[str] = []
        try:
            with guarded():
                output = as_json(result.output)
        except (ToolFailed, ToolOutcomeUnknown, FatalToolError):
            raise  # from an iterator that the tool returned
        except Exception as error:  # noqa: BLE001 - user code of a value; the tool has run
            logger.exception("tool_output_unreadable", error=error, tool=call.name, call_id=call.call_id)
            raised = only_error_in(error)
            problem = error.problem if isinstance(error, InvalidContent) else f"it raised {type_name(raised)}"
            output, notes = "", [f"[{call.name} has run, but what it returned cannot be kept: {problem}]"]
        attachments, left_out = _small_enough(result.attachments, self.settings.attachment_limit_bytes)
        return CallOutcome(
            call_id=call.call_id,
            status=CallStatus.succeeded,
            output=append_notes(output, [*notes, *left_out]),
            is_error=False,
            attachments=attachments,
        )


def failed(call: ToolCall, text: str, status: CallStatus = CallStatus.failed) -> CallOutcome:
    """Return the outcome of a call that went wrong; the model reads `text`."""
    return CallOutcome(call_id=call.call_id, status=status, output=well_formed(text), is_error=True)


def idempotency_key(chat_id: str, call: ToolCall) -> str:
    """Return the key of every run of a call, before and after a crash."""
    return f"{chat_id}:{call.call_id}"


async def _call_tool(
    tool: Tool,
    arguments: Mapping[str, Any],
    context: ToolContext[Any],
    begins: Callable[[], object],
    succeeded: Callable[[Any], CallOutcome],
) -> CallOutcome:
    """Run a tool. The thread of a blocking tool also reads its result: it may be a slow iterator."""

    def begin() -> Any:
        begins()  # before the check of `cancelled`, so that a later cancellation sees a running tool
        if context.cancelled:
            raise asyncio.CancelledError
        returned = tool.run(**arguments)
        return returned if inspect.isawaitable(returned) else succeeded(returned)

    started = begin() if tool.is_async else await in_thread(begin)
    return succeeded(await started) if inspect.isawaitable(started) else cast("CallOutcome", started)


def _small_enough(files: Sequence[FilePart], limit: int) -> tuple[tuple[FilePart, ...], list[str]]:
    """Return the files that fit into the limit together, and a note if some do not."""
    fitting: list[FilePart] = []
    left_out: list[str] = []
    room = limit
    for file in map(inlined, files):
        size = bytes_in(file.data or "")
        if size <= room:
            fitting.append(file)
            room -= size
        else:
            left_out.append(f"{file.name or file.media_type} ({size} bytes)")
    notes = [f"[left out, over the limit of {limit} bytes: {', '.join(left_out)}]"] if left_out else []
    return tuple(fitting), notes
