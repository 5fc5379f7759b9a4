"""Arguments with which a person approves a call in place of the model's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from turnwise.engine.tools.arguments import BadArguments, checked, coerced
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.errors import InvalidContent
from turnwise.states.values.digests import canonical


def edited_arguments(
    toolbox: Toolbox, calls: Iterable[ToolCall], results: Sequence[ToolResult], *, limit_bytes: int
) -> dict[str, dict[str, Any]]:
    """Return the arguments that approvals replace, by call, coerced to the tools' schemas.

    Results that the transition refuses anyway are passed over: it says why.

    Raises:
        InvalidContent: they don't fit the schema, or are larger than a message may be.
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
            edited[result.call_id] = coerced(tool, edits)
            checked(tool, edited[result.call_id])
        except BadArguments as error:
            raise InvalidContent(f"the edited arguments of call {result.call_id!r}: {error}") from error
    return edited
