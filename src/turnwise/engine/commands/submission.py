"""A client's results of calls, accepted once, with edited arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from turnwise.engine.tools.arguments import BadArguments, coerce, join_problems, validate
from turnwise.engine.tools.schemas import problems_with
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.engine.transactions.idempotency import late_results
from turnwise.engine.transactions.runtime import Runtime
from turnwise.states.calls import ClientTool, ToolCall, ToolResult
from turnwise.states.errors import InvalidContent
from turnwise.states.triggers import DeadlinePassed, SubmitToolResults
from turnwise.states.values.digests import canonical


class Submission(msgspec.Struct, frozen=True):
    """Accepts a client's results, unless they are late; calls whose time is over expire in the same commit."""

    results: tuple[ToolResult, ...]
    runtime: Runtime

    def __call__(self, unit: UnitOfWork) -> None:
        late = late_results(self.results, unit.facts, unit.now)
        if late or unit.accepts(DeadlinePassed()):
            unit.fire(DeadlinePassed())  # no sweep has expired the calls yet
        if not late:
            check_outputs(unit.facts.profile.client_tools, unit.facts.open_calls, self.results)
            toolbox = self.runtime.agents.toolbox(unit.facts.profile_of_calls)
            limit = self.runtime.settings.message_limit_bytes
            edited = edited_arguments(toolbox, unit.facts.open_calls, self.results, limit_bytes=limit)
            unit.fire(SubmitToolResults(results=self.results, edited=edited))


def check_outputs(tools: Iterable[ClientTool], calls: Iterable[ToolCall], results: Iterable[ToolResult]) -> None:
    schemas = {tool.name: tool.output_schema for tool in tools}
    asked = {call.call_id: call for call in calls if call.is_client and call.approval is None}
    for result in results:
        call = asked.get(result.call_id)
        schema = None if call is None or result.is_error else schemas.get(call.name)
        if call is None or schema is None:
            continue
        problems = problems_with(result.output, schema, trusted=False, whole="output")
        if problems:
            problem = f"the output of call {call.call_id!r} does not fit the schema of {call.name!r}"
            raise InvalidContent(f"{problem}: {join_problems(problems)}", argument="output")


def edited_arguments(
    toolbox: Toolbox, calls: Iterable[ToolCall], results: Sequence[ToolResult], *, limit_bytes: int
) -> dict[str, dict[str, Any]]:
    """Return the arguments that approvals replace, by call, coerced to the tools' schemas.

    Results that the transition refuses are skipped: its error explains them.
    """
    asked = {call.call_id: call for call in calls if call.approval == "asked"}
    edited: dict[str, dict[str, Any]] = {}
    for result in results:
        call, edits = asked.get(result.call_id), result.edits
        tool = None if call is None else toolbox.tools.get(call.name)
        if tool is None or not isinstance(edits, dict) or result.approval_problem is not None:
            continue
        if (size := len(canonical(edits))) > limit_bytes:
            raise InvalidContent(
                f"the edited arguments of call {result.call_id!r} hold at most {limit_bytes:,} bytes "
                f"(Settings.message_limit_bytes); these have {size:,}"
            )
        try:
            edited[result.call_id] = coerce(tool, edits)
            validate(tool, edited[result.call_id])
        except BadArguments as error:
            raise InvalidContent(f"the edited arguments of call {result.call_id!r}: {error}") from error
    return edited
