"""The answers of a server, put into the form that the SDK accepts: it would refuse a whole answer for one bad part.

What a call did is done, whatever its answer looks like; and one bad tool is no reason to do without the others. So the
answers are mended before the SDK checks them. It has no public place for that: see `listen_in`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import mcp
from mcp import types
from mcp.types import methods
from pydantic import ValidationError

_CALL: Final = "tools/call"
_LIST: Final = "tools/list"
_COMPLETE: Final = "complete"
_LONGEST: Final = 200


@dataclass
class Exchange:
    """A request to a server, and what was noticed of its answer beside the answer itself."""

    status: int | None = None
    """The status of the HTTP response, where there is one."""
    notes: list[str] = field(default_factory=list)
    """What of the answer was left out, for the model."""


EXCHANGE: Final[ContextVar[Exchange | None]] = ContextVar("turnwise_mcp_exchange", default=None)
"""The exchange of the task that asks: the SDK sends a request in the context of its sender."""


class Answers:
    """Sends requests as the SDK's own dispatcher does, and mends the answers.

    Args:
        inner: the dispatcher of a session.
        version: of the protocol that the session speaks.
    """

    def __init__(self, inner: Any, version: str) -> None:
        self._inner = inner
        self._version = version
        self.left_out: dict[str, str] = {}
        """Tools that cannot be read, by name, and why."""
        self.output_schemas: dict[str, Any] = {}
        """What tools declare of their results. The SDK does not see it: it would refuse a result for it."""

    def __getattr__(self, name: str) -> Any:
        """Return what the SDK asks of its dispatcher."""
        return getattr(self._inner, name)

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        """Send a request, and return the answer in the form that the SDK accepts."""
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


def listen_in(client: mcp.Client, changed: Callable[[], None]) -> Answers:
    """Mend the answers that a client gets from now on, and call `changed` when the server says that its tools have.

    The client may be anybody's, and is connected: what its session asks and tells is replaced in the session itself.
    """
    session: Any = client.session
    answers = session._dispatcher = Answers(session._dispatcher, client.protocol_version)  # noqa: SLF001 - see above
    told = session._message_handler  # noqa: SLF001 - see above

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed()
        await told(message)

    session._message_handler = hear  # noqa: SLF001 - see above
    return answers


def problem_with(method: str, version: str, raw: Mapping[str, Any]) -> str | None:
    """Return why the SDK does not accept an answer; `None` if it does."""
    try:
        methods.validate_server_result(method, version, raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"] if step not in ("tools", 0))
        return f"{place}: {first['msg']}"[:_LONGEST]
    except (KeyError, ValueError):  # a version that the SDK does not check
        return None
    return None


def readable_result(raw: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the result of a call in the form that the SDK accepts; notes say what had to be left out.

    A result that asks for something first, or is one of an extension, is no result yet and stays as it is.
    """
    exchange = EXCHANGE.get() or Exchange()
    exchange.notes.clear()
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
            exchange.notes.append(f"[a block of type {str(kind)[:_LONGEST]!r} was left out: it cannot be read]")
    for key in ("structuredContent", "isError", "_meta"):
        if raw.get(key) is None:
            continue
        if problem_with(_CALL, version, {**result, key: raw[key]}) is None:
            result[key] = raw[key]
        elif key == "structuredContent":
            result["content"].append(_text(json.dumps(raw[key])))
        elif key == "isError":
            exchange.notes.append("[the server did not say in a readable way whether the call failed]")
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
