"""One imported message: read, checked, and in turnwise's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NoReturn, cast, get_args

import msgspec
from msgspec.structs import asdict, replace

from turnwise.engine.prompt.history import GO_ON, is_blank
from turnwise.states.errors import InvalidArgument, InvalidContent
from turnwise.states.files import fault_of_file, fault_of_lines, has_unsafe_scheme
from turnwise.states.messages import (
    Content,
    FilePart,
    MarkerPart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    files_in,
    inlined,
    parts_of,
    size_of,
)
from turnwise.states.names import OPEN_STATUSES, Audience, Executor
from turnwise.states.values.checked import fit
from turnwise.states.values.hints import validator_of
from turnwise.states.values.limits import Name
from turnwise.states.values.plain import MODEL_LIMITS, Misfit, plain, shown
from turnwise.states.values.values import Time, Value, place_and_problem


class ImportedMessage(Value, frozen=True, kw_only=True, gc=True):
    """The fields of a message that an import takes over. All others are recomputed."""

    role: Literal["user", "assistant", "tool"]
    parts: tuple[Part, ...]
    created_at: datetime | None = None
    audience: Audience = Audience.everyone
    partial: bool = False
    synthetic: bool = False
    erased: bool = False
    agent: str | None = None
    agent_version: str | None = None
    model: str | None = None
    provider: str | None = None
    response_id: str | None = None
    finish_reason: str | None = None

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The calls that a message of its own answers."""
        calls = (part for part in self.parts if isinstance(part, ToolCallPart))
        return tuple(call for call in calls if call.executor is not Executor.provider)

    @property
    def is_made(self) -> bool:
        """Whether turnwise or a strategy of compaction wrote it."""
        return self.synthetic or self.audience is Audience.model


def read(place: str, entry: Any, limit: int) -> ImportedMessage | None:
    """Return the imported fields of a message; `None` for one that is left out, such as a signature without text."""
    fields = fit(place, _read_fields, entry)
    if fields is None:
        return None
    try:
        message = msgspec.convert(fields, ImportedMessage)
    except msgspec.ValidationError as error:
        at, problem = place_and_problem(error)
        raise InvalidArgument(f"{place}.{at}".rstrip("."), problem) from None
    message = replace(message, parts=tuple(map(_with_files_inline, message.parts)))
    _check_parts(place, message)
    if message.role == "user":
        message = replace(message, parts=_user_parts(place, message.parts))
    else:
        if all(map(is_blank, message.parts)):
            refuse(place, "parts", "must say something; they were blank")
        unsigned = (
            replace(part, signature=None) if isinstance(part, ReasoningPart) else part for part in message.parts
        )
        message = replace(message, parts=tuple(part for part in unsigned if not is_blank(part)))
        if not message.parts:
            return None
    size = size_of(message.parts) if message.role == "user" else len(msgspec.json.encode(message.parts))
    if size > limit:
        refuse(place, "", f"holds {size:,} bytes; a message holds at most {limit:,} (Settings.message_limit_bytes)")
    return message


def _read_fields(entry: Any) -> dict[str, Any] | None:
    """Return the imported fields as plain JSON; `None` for a message that is left out."""
    if isinstance(entry, Message):
        fields: dict[str, Any] = asdict(entry)
    elif isinstance(entry, Mapping):
        fields = dict(entry)
    else:
        raise Misfit(f"must be a Message, or a mapping with the fields of one; it was {shown(entry)}")
    for key in fields:
        if not isinstance(key, str) or key not in _FIELDS:
            raise Misfit(f"has a field {shown(key)}; a message has {', '.join(_TAKEN)}, or content instead of parts")
    taken: dict[str, Any] = plain({key: fields[key] for key in _TAKEN if key in fields and key not in _APART})
    if taken.get("audience") == Audience.user or fields.get("id") == GO_ON:
        return None
    if taken.get("role") == "system":
        raise Misfit("must not be of the role 'system'; give the system prompt as system=...")
    return {**taken, "parts": _read_parts(fields), "created_at": _read_time(fields)}


def _read_time(fields: Mapping[str, Any]) -> datetime | None:
    time = fields.get("created_at")
    try:
        moment = None if time is None else msgspec.convert(time, Time)
    except msgspec.ValidationError:
        raise Misfit(f"must have a time with its zone, such as '2026-01-31T12:00:00Z'; it was {shown(time)}") from None
    if moment is not None and not _EARLIEST <= moment.replace(tzinfo=UTC) < _LATEST:
        raise Misfit(f"must have a time since {_EARLIEST:%Y}; it was {moment.isoformat()}")
    return None if moment is None else moment.astimezone(UTC)


def _read_parts(fields: Mapping[str, Any]) -> list[Any]:
    parts: Any = fields.get("parts")
    content = fields.get("content")
    if (parts is None) == (content is None):
        raise Misfit(f"needs either content, a text, or parts; it has {'neither' if parts is None else 'both'}")
    if content is not None:
        if not isinstance(content, str):
            raise Misfit(f"must have a text as content, or parts; content was {shown(content)}")
        if not content.strip():
            raise Misfit("must say something; its content was empty", unstorable=True)
        return [{"type": "text", "text": plain(content, MODEL_LIMITS)}]
    if not isinstance(parts, list | tuple):
        raise Misfit(f"must have a list of parts; it was {shown(parts)}")
    return [_part(place, part) for place, part in enumerate(parts)]


def _part(place: int, entry: Any) -> dict[str, Any]:
    """Return a part as plain JSON, without the provider's metadata of the old chat."""
    part = plain(_to_builtins(entry), MODEL_LIMITS)
    if not isinstance(part, dict) or part.get("type") not in _KINDS:
        kind = shown(part.get("type") if isinstance(part, dict) else part)
        raise Misfit(f"must have parts of the types {', '.join(_KINDS)}; parts[{place}] was {kind}")
    fields = _KINDS[part["type"]].__struct_fields__
    unknown = [key for key in part if key not in ("type", *fields)]
    if unknown:
        raise Misfit(f"has a {part['type']} with a field {shown(unknown[0])}; it may have {', '.join(fields)}")
    attached = part.get("attachments")
    if isinstance(attached, list):
        part["attachments"] = [_without_metadata(file) if isinstance(file, dict) else file for file in attached]
    return _without_metadata(part)


def _without_metadata(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "metadata"}


def _to_builtins(part: Any) -> Any:
    if isinstance(part, Value):
        return msgspec.to_builtins(part, builtin_types=(bytes, bytearray, memoryview))
    if isinstance(part, Mapping) and isinstance(part.get("attachments"), list | tuple):
        return {**part, "attachments": [_to_builtins(file) for file in part["attachments"]]}
    return part


def _check_parts(place: str, message: ImportedMessage) -> None:
    if message.partial and message.role != "assistant":
        refuse(place, "partial", f"is for answers that were cut short, and the role is {message.role!r}")
    if message.role == "tool" and len(message.parts) != 1:
        refuse(
            place,
            "parts",
            f"must hold exactly one tool_result for the role 'tool'; it holds {len(message.parts)} parts",
        )
    if not message.parts:
        refuse(place, "parts", "must say something; there were none")
    for part in message.parts:
        if not isinstance(part, _MAY_HAVE[message.role]):
            refuse(place, "parts", f"must not hold a {part.type} for the role {message.role!r}")
        if isinstance(part, ToolCallPart | ToolResultPart):
            fit(f"{place}.call_id", _NAME, part.call_id)
            fit(f"{place}.name", _NAME, part.name)
        if isinstance(part, ToolResultPart) and part.outcome in OPEN_STATUSES:
            refuse(place, "parts", f"must tell how call {part.call_id!r} ended; {part.outcome.value!r} is no end")
        _check_files(place, part)


def _with_files_inline(part: Part) -> Part:
    if isinstance(part, ToolResultPart):
        return replace(part, attachments=tuple(map(inlined, part.attachments)))
    return inlined(part) if isinstance(part, FilePart) else part


NO_REFERENCE: Final = (
    "must not refer to a file by its digest (blob): only the chat that holds it may; "
    "give the bytes (data) or an address (url), or fork that chat"
)
"""The refusal of references in a new chat."""


def _check_files(place: str, part: Part) -> None:
    if isinstance(part, SourcePart) and has_unsafe_scheme(part.url):
        refuse(place, "parts", f"the url of a source must be an address of the web; it was {part.url[:80]!r}")
    for file in files_in([part]):
        if file.blob is not None:
            refuse(place, "parts", NO_REFERENCE)
        fault = fault_of_file(file.media_type, file.data, file.url)
        fault = fault or fault_of_lines(file.lines, file.media_type, file.url)
        if fault is not None:
            refuse(place, "parts", fault)


def _user_parts(place: str, parts: Sequence[Part]) -> tuple[Part, ...]:
    try:
        return parts_of(cast("Content", parts))
    except InvalidContent as error:
        refuse(place, "", error.problem)


def refuse(place: str, field: str, problem: str) -> NoReturn:
    named = f"{place}.{field}".rstrip(".")
    raise InvalidContent(f"{named}: {problem}", argument=named)


_NAME: Final = validator_of(Name)
_EARLIEST: Final = datetime(1970, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)
_TAKEN: Final = ImportedMessage.__struct_fields__
_APART: Final = ("parts", "created_at")
_FIELDS: Final = frozenset((*Message.__struct_fields__, "content"))
_KINDS: Final[Mapping[str, Any]] = {kind.type: kind for kind in get_args(get_args(Part)[0]) if kind is not MarkerPart}
_MAY_HAVE: Final[Mapping[str, Any]] = {
    "user": (TextPart, FilePart),
    "assistant": (TextPart, ReasoningPart, ToolCallPart, ToolResultPart, SourcePart, FilePart),
    "tool": (ToolResultPart,),
}
