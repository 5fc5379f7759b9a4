"""Converts tools of MCP servers to tools of the engine, and their results to outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import mcp
from mcp import types

from turnwise.engine.mcp.connection import ServerAnswer
from turnwise.engine.tools.arguments import join_problems
from turnwise.engine.tools.context import ToolContext, ToolOutput
from turnwise.engine.tools.declare import Tool
from turnwise.engine.tools.limited_checks import TO_CALL, limited
from turnwise.engine.tools.schemas import check_schema, problems_with
from turnwise.states.errors import InvalidContent, SettingsError, TurnwiseError
from turnwise.states.messages import FilePart, sound_file

_CONTEXT: Final = "turnwise_context"
_LONGEST_NAME: Final = 64

Call = Callable[[str, dict[str, Any], ToolContext], Awaitable[ServerAnswer]]
"""Calls a tool by its name on the server."""


class MCPToolFailed(TurnwiseError):
    """A tool of an MCP server reported an error. The model sees its text."""


def tool_of(offered: mcp.Tool, server: str, prefix: str, call: Call) -> Tool:
    """Convert a server's tool to a tool of the engine, unless it runs only as a task, or its schema is refused."""
    hints = offered.annotations or types.ToolAnnotations()

    async def run(**arguments: Any) -> ToolOutput:
        context: ToolContext = arguments.pop(_CONTEXT)
        return output_of(await call(offered.name, arguments, context))

    if offered.execution is not None and offered.execution.task_support == "required":
        raise SettingsError(f"tool {offered.name!a:.80}", "runs only as a task of MCP, and turnwise makes plain calls")
    tool = Tool(
        name=_name(prefix + offered.name),
        description=offered.description or offered.title or offered.name,
        schema=offered.input_schema,
        run=run,
        context_parameter=_CONTEXT,
        parallel_safe=bool(hints.read_only_hint),
        crash="at_least_once" if hints.read_only_hint or hints.idempotent_hint else "at_most_once",
        source=server,
    )
    with limited(TO_CALL):
        check_schema(f"tool {tool.name!r}", tool.schema)
    return tool


def _name(original: str) -> str:
    """Return a name that every provider accepts. A long name ends with a digest, so that names stay distinct."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", original)
    return name if len(name) <= _LONGEST_NAME else f"{name[:55]}_{sha256(original.encode()).hexdigest()[:8]}"


def output_of(answer: ServerAnswer) -> ToolOutput:
    """Return a tool's output: the structured content, or else the text, and the files.

    A problem with the answer becomes a note in the output, because the tool has run.
    """
    result, notes = answer.result, [*answer.notes]
    lines, files = _read(result.content, notes)
    text, structured = "\n".join(lines), result.structured_content
    if result.is_error:
        raise MCPToolFailed(_error_text(text, structured, files, notes))
    problem = _find_problem(structured, answer.output_schema)
    if problem is not None:
        notes.append(f"[{problem}]")
    elif structured is not None and not notes:
        return ToolOutput(structured, tuple(files))
    if structured is not None and not _is_same(text, structured):
        lines.append(_json(structured))
    return ToolOutput("\n".join(filter(None, [*lines, *notes])), tuple(files))


def _read(content: Sequence[types.ContentBlock], notes: list[str]) -> tuple[list[str], list[FilePart]]:
    """Return the texts and files in the blocks. Invalid files add a note."""
    lines, files = list[str](), list[FilePart]()
    for block in content:
        match block:
            case types.TextContent():
                lines.append(block.text)
            case types.ImageContent() | types.AudioContent():
                _attach(files, notes, media_type=block.mime_type, data=block.data)
            case types.ResourceLink():
                lines.append(f"{block.title or block.name}: {block.uri}")
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                lines.append(resource.text)
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                media_type = resource.mime_type or "application/octet-stream"
                _attach(files, notes, media_type=media_type, data=resource.blob, name=str(resource.uri))
    return lines, files


def _attach(files: list[FilePart], notes: list[str], **fields: Any) -> None:
    try:
        files.append(sound_file(FilePart(**fields)))
    except InvalidContent as error:
        notes.append(f"[a file was left out: {error.problem}]")


def _find_problem(structured: Any, schema: Any) -> str | None:
    """Return the mismatch of structured content with the server's output schema; `None` if it fits."""
    if schema is None:
        return None
    if structured is None:
        return "the server declared an output schema for this tool, and sent no structured content"
    problems = problems_with(structured, schema, trusted=False, whole="the result")
    return f"the result does not fit the output schema of the server: {join_problems(problems)}" if problems else None


def _is_same(text: str, structured: Any) -> bool:
    try:
        return bool(json.loads(text) == structured)
    except (ValueError, RecursionError):
        return False


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _error_text(text: str, structured: Any, files: Sequence[FilePart], notes: Sequence[str]) -> str:
    lines = [text or (_json(structured) if structured else ""), *notes]
    if files:
        lines.append(f"[left out, as the call failed: {', '.join(file.name or file.media_type for file in files)}]")
    return "\n".join(filter(None, lines)) or "it does not say why"
