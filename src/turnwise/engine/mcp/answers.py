"""Repairs answers of MCP servers before the SDK validates them.

The SDK rejects a whole answer for one invalid part. But a call has taken effect even if its result is invalid, and one
invalid tool must not hide the others. The SDK has no public hook for this: see `repair_answers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import mcp
import msgspec
from mcp import types
from mcp.types import methods
from pydantic import ValidationError

_CALL: Final = "tools/call"
_LIST: Final = "tools/list"
_COMPLETE: Final = "complete"
_LONGEST: Final = 200


class ResponseInfo(msgspec.Struct):
    """The metadata of a server's answer."""

    status: int | None = None
    """The status of the HTTP response; `None` without HTTP."""
    notes: list[str] = []
    """Notes for the model about invalid parts of the answer."""


CURRENT_RESPONSE: Final[ContextVar[ResponseInfo | None]] = ContextVar("turnwise_mcp_exchange", default=None)
"""The response_info of the current task: the SDK sends a request in the context of its caller."""


class Answers:
    """Wraps the SDK's dispatcher, and repairs the answers."""

    def __init__(self, inner: Any, version: str) -> None:
        self._inner = inner
        self._version = version
        self.left_out: dict[str, str] = {}
        """Invalid tools by name, each with its problem."""
        self.output_schemas: dict[str, Any] = {}
        """The output schemas of the tools, hidden from the SDK, which would reject results that do not fit them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        """Send a request, and return the answer in a form that the SDK accepts."""
        raw: dict[str, Any] = await self._inner.send_raw_request(method, params, opts)
        if method == _LIST:
            return self._readable_tools(raw)
        return readable_result(raw, self._version) if method == _CALL else raw

    def _readable_tools(self, raw: dict[str, Any]) -> dict[str, Any]:
        offered = raw.get("tools")
        if not isinstance(offered, list) or problem_with(_LIST, self._version, {**raw, "tools": []}) is not None:
            return raw
        tools: list[Any] = []
        for tool in offered:
            readable = dict(tool) if _is_object(tool) else tool
            output_schema = readable.pop("outputSchema", None) if _is_object(tool) else None
            name = str(tool.get("name"))[:_LONGEST] if _is_object(tool) else f"number {len(tools) + 1}"
            problem = problem_with(_LIST, self._version, {**raw, "tools": [readable]})
            if problem is not None:
                self.left_out[name] = problem
                continue
            self.output_schemas[name] = output_schema
            tools.append(readable)
        return {**raw, "tools": tools}


def repair_answers(client: mcp.Client, changed: Callable[[], None]) -> Answers:
    """Repair all further answers to a client, and call `changed` when the server reports that its tools have changed.

    The client is connected and may be the application's own, so dispatcher and handler of its session are replaced.
    """
    session: Any = client.session
    answers = session._dispatcher = Answers(session._dispatcher, client.protocol_version)  # noqa: SLF001 - see above
    handle_message = session._message_handler  # noqa: SLF001 - see above

    async def handle(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed()
        await handle_message(message)

    session._message_handler = handle  # noqa: SLF001 - see above
    return answers


def problem_with(method: str, version: str, raw: Mapping[str, Any]) -> str | None:
    """Return the SDK's reason to reject an answer; `None` if it accepts it."""
    try:
        methods.validate_server_result(method, version, raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"] if step not in ("tools", 0))
        return f"{place}: {first['msg']}"[:_LONGEST]
    except (KeyError, ValueError):  # the SDK does not validate this protocol version
        return None
    return None


def readable_result(raw: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the result of a call in a form that the SDK accepts, and note the parts that were left out.

    A result of another type than `complete`, such as a request for input, is returned unchanged.
    """
    response_info = CURRENT_RESPONSE.get() or ResponseInfo()
    response_info.notes.clear()
    if raw.get("resultType", _COMPLETE) != _COMPLETE or problem_with(_CALL, version, raw) is None:
        return raw
    result: dict[str, Any] = {"resultType": _COMPLETE, "content": []}
    for block in _blocks(raw.get("content")):
        if problem_with(_CALL, version, {**result, "content": [block]}) is None:
            result["content"].append(block)
        elif _is_object(block) and isinstance(block.get("text"), str):
            result["content"].append(_text(block["text"]))
        else:
            kind = block.get("type") if _is_object(block) else None
            response_info.notes.append(f"[a block of type {str(kind)[:_LONGEST]!r} was left out: it cannot be read]")
    for key in ("structuredContent", "isError", "_meta"):
        if raw.get(key) is None:
            continue
        if problem_with(_CALL, version, {**result, key: raw[key]}) is None:
            result[key] = raw[key]
        elif key == "structuredContent":
            result["content"].append(_text(json.dumps(raw[key])))
        elif key == "isError":
            response_info.notes.append("[the server did not say in a readable way whether the call failed]")
    return result


def _blocks(content: Any) -> Iterator[Any]:
    if isinstance(content, list):
        yield from content
    elif isinstance(content, str):
        yield _text(content)
    elif content is not None:
        yield content


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
