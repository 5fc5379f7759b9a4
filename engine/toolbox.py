"""The toolbox: the tools of an engine, as the model sees them and as they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import pydantic_core
from pydantic import JsonValue

from turnwise.engine.arguments import BadArguments, checked
from turnwise.engine.settings import Settings
from turnwise.engine.tools import Tool, ToolContext, ToolOutput
from turnwise.providers.protocol import ToolSpec
from turnwise.states.calls import CallOutcome, ClientTool, ToolCall
from turnwise.states.digests import as_json
from turnwise.states.errors import FatalToolError, InvalidContent
from turnwise.states.facts import Facts
from turnwise.states.names import CallStatus, Stage
from turnwise.states.unicode import well_formed


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Local tools by name, and the rules by which they run."""

    tools: Mapping[str, Tool]
    settings: Settings

    def offered(self, client_tools: Sequence[ClientTool]) -> tuple[ToolSpec, ...]:
        """Return the tools to offer to the model: local ones, then the client's; each as a copy."""
        specs = [tool.spec for tool in self.tools.values()]
        specs += [ToolSpec(tool.name, tool.description, tool.input_schema) for tool in client_tools]
        active = self.settings.active_tools
        return tuple(_copied(spec) for spec in specs if active is None or spec.name in active)

    def first_calls(self, facts: Facts) -> tuple[ToolCall, ...]:
        """Return the calls to start as soon as the chat executes tools: one, or a batch that may run in parallel.

        A call that a crash cut off is none of them: its tool is asked first what became of it.
        """
        if facts.step.stage is not Stage.acting:
            return ()
        local = [call for call in facts.calls if call.is_local]
        first = [call for call in local if call.open][: self.width(local)]
        return tuple(call for call in first if call.status is CallStatus.planned)

    def width(self, calls: Sequence[ToolCall]) -> int:
        """Return how many calls of a batch may run at once: several only if every call is safe."""
        if self.settings.tools_parallel == "all" or all(self._is_safe(call.name) for call in calls):
            return self.settings.parallel_cap
        return 1

    def timeout(self, call: ToolCall) -> float | None:
        """Return the seconds a call may take."""
        tool = self.tools.get(call.name)
        return tool.timeout if tool is not None and tool.timeout is not None else self.settings.tool_timeout

    async def run(self, call: ToolCall, context: ToolContext) -> CallOutcome:
        """Run a call and return what the model will see: whatever goes wrong is a result, too.

        Raises:
            FatalToolError: the tool wants the chat to end in `error`.
        """
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            return failed(call, f"There is no tool named {call.name!r}. Tools: {known}.")
        try:
            arguments = checked(tool, call.arguments)
            if tool.context_parameter is not None:
                arguments[tool.context_parameter] = context
            return self._succeeded(call, await _invoke(tool, arguments))
        except BadArguments as error:
            return failed(call, str(error))
        except FatalToolError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is a result that the model sees
            return failed(call, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    async def reconcile(self, call: ToolCall, context: ToolContext) -> CallOutcome | None:
        """Ask a tool what became of a call that a crash cut off; `None` if it cannot tell."""
        tool = self.tools.get(call.name)
        if tool is None or tool.reconcile is None:
            return None
        try:
            found = await tool.reconcile(context)
        except Exception as error:  # noqa: BLE001 - as in `run`
            return failed(call, f"Outcome unknown; asking for it failed with {type(error).__name__}: {error}")
        return None if found is None else self._succeeded(call, found)

    def _is_safe(self, name: str) -> bool:
        tool = self.tools.get(name)
        return tool is not None and tool.parallel_safe

    def _succeeded(self, call: ToolCall, returned: Any) -> CallOutcome:
        given = returned if isinstance(returned, ToolOutput) else ToolOutput(returned)
        try:
            output = as_json(given.output)
        except InvalidContent as error:
            return failed(call, f"What the tool returned cannot be kept: {error.problem}.")
        return CallOutcome(
            call_id=call.call_id,
            status=CallStatus.succeeded,
            output=_within(output, self.settings.output_limit_bytes),
            is_error=False,
            attachments=given.attachments,
        )


def failed(call: ToolCall, text: str, status: CallStatus = CallStatus.failed) -> CallOutcome:
    """Return the outcome of a call that went wrong, told to the model in `text`."""
    return CallOutcome(call_id=call.call_id, status=status, output=well_formed(text), is_error=True)


def idempotency_key(chat_id: str, call: ToolCall) -> str:
    """Return the key under which every run of a call acts: the same before and after a crash."""
    return f"{chat_id}:{call.call_id}"


def _copied(spec: ToolSpec) -> ToolSpec:
    return ToolSpec(spec.name, spec.description, pydantic_core.from_json(pydantic_core.to_json(spec.schema)))


async def _invoke(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    if tool.is_async:
        return await tool.run(**arguments)
    return await anyio.to_thread.run_sync(lambda: tool.run(**arguments), abandon_on_cancel=True)


def _within(output: JsonValue, limit: int) -> JsonValue:
    text = output if isinstance(output, str) else pydantic_core.to_json(output).decode()
    encoded = text.encode()
    if len(encoded) <= limit:
        return output
    kept = encoded[:limit].decode(errors="ignore")
    cut = len(encoded) - len(kept.encode())
    return f"{kept}\n[cut: {cut} of {len(encoded)} bytes are not shown]"
