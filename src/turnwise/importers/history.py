"""The history that an importer builds, message by message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from turnwise.states.errors import InvalidArgument, TurnwiseError
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import CallStatus
from turnwise.states.values.plain import shown
from turnwise.states.values.values import Value

NO_RESULT: Final = "No result of this call was imported."
_TEXT: Final = ("text", "input_text", "output_text", "refusal")
_Role = Literal["user", "assistant", "tool"]
_Origin = tuple[str | None, str | None]
_ADDRESSED: Final = ("image_url", "input_image")


class ImportedChat(Value, frozen=True, gc=True):
    """The result of an importer."""

    system: str | None
    """The system messages, joined; `None` without one."""
    history: tuple[Message, ...]


def import_each(argument: str, items: Any, add: Callable[[HistoryBuilder, str, Any], None]) -> ImportedChat:
    """Return the history to which `add` adds each item, given with its place."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise InvalidArgument(argument, f"must be a list, one item a message; it was {shown(items)}")
    history = HistoryBuilder()
    for number, item in enumerate(items):
        place = f"{argument}[{number}]"
        try:
            add(history, place, item)
        except TurnwiseError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            problem = f"has not the form in which its library writes it: {type(error).__name__}: {error!s:.200}"
            raise InvalidArgument(place, problem) from error
    return history.done()


def field_of(value: Any, name: str, default: Any = None) -> Any:
    """Return a field of a library's object, or of its JSON."""
    found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return default if found is None else found


def arguments_of(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call, which may be JSON text; other text stands under `arguments`."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return {"arguments": arguments}
    return dict(arguments) if isinstance(arguments, Mapping) else {"arguments": arguments}


def parts_of_content(place: str, content: Any) -> list[Part]:
    """Return the parts of a message's content: text, or a list of blocks."""
    if content is None or isinstance(content, str):
        return [TextPart(text=content)] if content else []
    return [_part_of_block(place, block) for block in content]


def _part_of_block(place: str, block: Any) -> Part:
    kind = field_of(block, "type")
    if isinstance(block, str):
        return TextPart(text=block)
    if kind in _TEXT:
        return TextPart(text=str(field_of(block, "text", field_of(block, "refusal", ""))))
    if kind in _ADDRESSED:
        address = field_of(block, "image_url")
        url = address if isinstance(address, str) else field_of(address, "url")
        if isinstance(url, str):
            return file_at(url, "image/png")
    raise InvalidArgument(place, f"has a block of the type {kind!r:.60}, which is not imported; leave it out")


def file_at(url: str, media_type: str) -> FilePart:
    """Return the file at an address; one in a `data:` URL is held inline, with the media type of that."""
    head, comma, data = url.partition(";base64,")
    if url.startswith("data:") and comma:
        return FilePart(media_type=head.removeprefix("data:") or media_type, data=data)
    return FilePart(media_type=media_type, url=url)


class HistoryBuilder:
    """Builds a history in which each call has its one result, right behind the reply that asks for it."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._system: list[str] = []
        self._open: dict[str, str] = {}
        self._now: Final = datetime.now(UTC)

    def system(self, text: str) -> None:
        """Add a system message."""
        self._system.append(text)

    def user(self, parts: Sequence[Part], at: datetime | None = None) -> None:
        """Add a message of the user."""
        self._close()
        self._append("user", parts, at)

    def reply(self, parts: Sequence[Part], at: datetime | None = None, origin: _Origin = (None, None)) -> None:
        """Add a reply, joined to a reply directly before it; `origin` are the names of model and provider."""
        last = self._messages[-1] if self._messages else None
        parts = [part for part in parts if not (isinstance(part, TextPart | ReasoningPart) and not part.text.strip())]
        calls = {part.call_id: part.name for part in parts if isinstance(part, ToolCallPart)}
        if last is not None and last.role == "assistant":
            self._messages.pop()
            parts, at, origin = [*last.parts, *parts], last.created_at, (last.model, last.provider)
        else:
            self._close()
        self._open |= calls
        self._append("assistant", parts, at, origin)

    def result(self, call_id: str, output: Any, at: datetime | None = None, *, is_error: bool = False) -> None:
        """Add the result of a call of an earlier reply; leave out any other."""
        name = self._open.pop(call_id, None)
        if name is not None:
            outcome = CallStatus.failed if is_error else CallStatus.succeeded
            part = ToolResultPart(call_id=call_id, name=name, output=output, is_error=is_error, outcome=outcome)
            self._append("tool", [part], at)

    def done(self) -> ImportedChat:
        """Return the history; a call without a result gets a synthetic one."""
        self._close()
        return ImportedChat("\n\n".join(self._system) or None, tuple(self._messages))

    def _close(self) -> None:
        for call_id, name in self._open.items():
            part = ToolResultPart(call_id=call_id, name=name, output=NO_RESULT, outcome=CallStatus.cancelled)
            self._append("tool", [part], None)
        self._open = {}

    def _append(self, role: _Role, parts: Sequence[Part], at: datetime | None, origin: _Origin = (None, None)) -> None:
        if not parts:
            return
        self._messages.append(
            Message(
                id=f"m{len(self._messages) + 1}",
                role=role,
                parts=tuple(parts),
                turn=0,
                step=0,
                created_at=at or self._now,
                model=origin[0],
                provider=origin[1],
            )
        )
