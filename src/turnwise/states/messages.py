"""Messages and their parts: turnwise's own, versioned form of what users, models and tools say."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, cast

import msgspec
from msgspec.structs import asdict, replace
from pydantic import Field, SkipValidation

from turnwise.states.errors import InvalidContent
from turnwise.states.files import OnDisk, content_in, fault_of_file, fault_of_lines, file_at
from turnwise.states.names import SYSTEM, Audience, BoundaryReason, CallStatus, Executor, WhenDue
from turnwise.states.usage import Usage
from turnwise.states.values.checked import checked
from turnwise.states.values.hints import validator_of
from turnwise.states.values.plain import Misfit, plain, text
from turnwise.states.values.values import Checked, Counter, Json, Time, Value

_SECRET: Final = re.compile("encrypted|(thought_?)?signature", re.IGNORECASE)
"""What the names of fields begin with that a provider encrypts or signs."""
FORMAT: Final = 1
"""The version of the stored form of a message. Older versions stay readable."""
CHARACTERS_PER_TOKEN: Final = 4
"""A rough figure, for estimates."""


class _Part(Value, metaclass=Checked, frozen=True, kw_only=True, tag_field="type"):
    metadata: dict[str, Any] | None = None
    """The provider's own data about the part: stored, sent back to it, never shown to a client."""


_AnyPart = TypeVar("_AnyPart", bound=_Part)


class TextPart(_Part, frozen=True, kw_only=True, tag="text"):
    """A piece of text."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    """The text."""


class ReasoningPart(_Part, frozen=True, kw_only=True, tag="reasoning"):
    """The model's reasoning. `signature` goes back to its provider, byte by byte, and nowhere else."""

    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str = ""
    """The text, where the provider shows it."""
    signature: str | None = None
    """The provider's signature."""


class ToolCallPart(_Part, frozen=True, kw_only=True, tag="tool_call"):
    """A tool call the model asked for."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    call_id: str
    """The call's id."""
    name: str
    """The tool's name."""
    arguments: dict[str, Any]
    """The arguments, as JSON."""
    executor: Executor = Executor.local
    """Who runs the call."""


class FilePart(_Part, frozen=True, kw_only=True, tag="file"):
    """A file: inline (`data`, base64), by address (`url`), or by reference (`blob`) to what the chat's store keeps.

    Of what is sent, a `data:` URL is no address: its content is taken as `data`, and its own media type ignored.
    """

    type: ClassVar[Literal["file"]] = "file"
    media_type: str
    """The media type, such as `image/png`."""
    data: str | None = None
    """The bytes, as base64."""
    url: str | None = None
    """The address of the file."""
    name: str | None = None
    """The file's name."""
    blob: str | None = None
    """The SHA-256, as hex, of the bytes: see `Engine.put_file` and `Engine.open_file`."""
    size: int | None = None
    """How many bytes a blob has; turnwise fills it in."""
    lines: tuple[int, int] | None = None
    """The first and the last line that the model reads of a text file, counted from 1; `None` for all of the file."""

    @classmethod
    @checked
    def from_bytes(cls, data: bytes, media_type: str, *, name: str | None = None) -> FilePart:
        """Return a file that is sent inline.

        Raises:
            InvalidArgument: an argument is of the wrong type.
            InvalidContent: the file is empty, or `media_type` is not one.
        """
        part = cls(media_type=media_type, data=b64encode(data).decode(), name=name)
        return cast("FilePart", _sound(part))

    @classmethod
    @checked
    def from_path(
        cls, path: Annotated[str | OnDisk, SkipValidation], *, media_type: str | None = None, name: str | None = None
    ) -> FilePart:
        """Return a file of the disk, read now and sent inline. Reading blocks.

        Args:
            path: where the file is.
            media_type: guessed from the name's ending by default.
            name: the file's own by default, with U+FFFD for what is no UTF-8 in it.

        Raises:
            InvalidArgument: an argument is of the wrong type.
            InvalidContent: the file cannot be read, is empty, or its name does not show its media type.
        """
        own_name, guessed, data = file_at(path)
        if not data:
            raise InvalidContent(f"the file {own_name!r} is empty", argument="path")
        if media_type is None and guessed is None:
            raise InvalidContent(f"the name {own_name!r} does not tell what is in the file; give media_type=...")
        return cls.from_bytes(data, media_type or guessed or "", name=name or own_name)


class ToolResultPart(_Part, frozen=True, kw_only=True, tag="tool_result"):
    """The one result of a call. `outcome` is how the call ended."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call_id: str
    """The call's id."""
    name: str
    """The tool's name."""
    output: Json
    """The result, as JSON."""
    is_error: bool = False
    """Whether the call failed."""
    outcome: CallStatus = CallStatus.succeeded
    """How the call ended."""
    attachments: tuple[FilePart, ...] = ()
    """Files that the tool returned."""
    edited_arguments: dict[str, Any] | None = None
    """The arguments of the call, if the approval changed the model's."""


SourceType = Literal["url", "document"]
"""What a source is: a page of the web, or a document that the model was given."""


class SourcePart(_Part, frozen=True, kw_only=True, tag="source"):
    """A source the model cited. Stored and shown, never sent back to the model."""

    type: ClassVar[Literal["source"]] = "source"
    url: str = ""
    """Where it is; blank for a document that has no address."""
    title: str | None = None
    """The title of the source."""
    id: str | None = None
    """The provider's own id of the source, such as that of a file in its store."""
    source_type: SourceType = "url"
    """Whether it is a web page or a document."""


class MarkerPart(_Part, frozen=True, kw_only=True, tag="marker"):
    """A line in the user's transcript that says the context was compacted or cleared here."""

    type: ClassVar[Literal["marker"]] = "marker"
    reason: BoundaryReason
    """What was done to the context."""
    text: str
    """The line, for users."""
    carried: tuple[int, ...] = ()
    """Positions of what the model sees from here on, in its order: earlier messages that stay, and the new ones that
    a compaction put right after the marker."""


Part = Annotated[
    TextPart | ReasoningPart | ToolCallPart | ToolResultPart | SourcePart | FilePart | MarkerPart,
    Field(discriminator="type"),
]
Role = Literal["system", "user", "assistant", "tool"]
Content = Annotated[str | Sequence[TextPart | FilePart], SkipValidation]
"""What a user may send: text, or a sequence of text and file parts."""


_PARTS: Final = validator_of(Sequence[TextPart | FilePart])


class ModelFailure(Value, metaclass=Checked, frozen=True, kw_only=True):
    """A model that did not answer, and why: the next one of the agent's models was asked instead."""

    provider: str
    """The provider of the model."""
    model: str
    """The name of the model."""
    kind: str
    """The kind of its `ModelError`."""
    status: int | None = None
    """The provider's HTTP status, where there was one."""
    retry_after: float | None = None
    """The seconds for which the provider asked to wait."""


class Wakeup(Value, frozen=True, kw_only=True):
    """The origin of a message that was sent by the clock."""

    schedule: str
    """The id of the schedule."""
    by: str
    """Who scheduled it: the actor of that record of the audit log."""
    due: Time
    """When it was due."""


class Message(Value, metaclass=Checked, frozen=True, kw_only=True, gc=True, weakref=True):
    """One entry of a chat's history. A `tool` message holds exactly one result."""

    id: str
    """The message's id."""
    role: Role
    """The sender."""
    parts: tuple[Part, ...]
    """The content."""
    turn: Counter
    """The turn of the message."""
    step: Counter
    """The step of the message; 0 for a message that begins a turn."""
    created_at: Time
    """When the message was stored."""
    position: Counter = 0
    """The place in the history, rising with every stored message; 0 for a message that is not stored."""
    audience: Audience = Audience.everyone
    """Who may see the message."""
    call_index: int | None = None
    """For a tool message, the place of its call among the calls of the step."""
    partial: bool = False
    """True for the part of a reply that had been shown when it was cut short."""
    synthetic: bool = False
    """True when turnwise wrote the message: a result for an interrupted call, a summary, a marker. Of messages from
    elsewhere also true of those for the model alone."""
    steered: bool = False
    """True for a user's message that entered a turn under way: it came with `when_busy="steer"`."""
    erased: bool = False
    """Whether the content was erased."""
    imported: bool = False
    """True when the message was imported as the chat was created."""
    wakeup: Wakeup | None = None
    """The schedule that sent the message, if one did."""
    agent: str | None = None
    """The agent in whose name the model answered. This and the following fields are set only in a model's messages."""
    agent_version: str | None = None
    """That agent's version."""
    model: str | None = None
    """The model that answered."""
    provider: str | None = None
    """The provider of that model."""
    response_id: str | None = None
    """The provider's own id of the reply, where it gives one."""
    finish_reason: str | None = None
    """Why the reply ended, in the provider's word."""
    usage: Usage | None = None
    """The usage that the provider reported for this reply."""
    parameters_digest: str | None = None
    """The SHA-256 of the canonical JSON of the parameters that the model was asked with, and of `answer_schema`."""
    tools_digest: str | None = None
    """The same of the tools that it was offered: names, descriptions and schemas, in order."""
    fallback_from: tuple[ModelFailure, ...] = ()
    """The models that come before this one in the agent's order, and why each did not answer."""

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls the message asks for, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def result(self) -> ToolResultPart | None:
        """The result that a `tool` message holds."""
        part = self.parts[0] if self.role == "tool" and self.parts else None
        return part if isinstance(part, ToolResultPart) else None


def recorded_calls(message: Message) -> set[str]:
    """Return the ids of a message's calls that have a record; one that its provider ran has none, and any id.

    A copy for the model alone asks for nothing itself: the record is the original's.
    """
    if message.audience is Audience.model:
        return set()
    return {call.call_id for call in message.calls if call.executor is not Executor.provider}


def recorded_results(message: Message) -> set[str]:
    """Return the id of the call that a message answers, if any; a copy for the model alone answers none itself."""
    return set() if message.result is None or message.audience is Audience.model else {message.result.call_id}


class QueuedMessage(Value, frozen=True, kw_only=True):
    """A user message that was accepted while the chat was busy and waits for its turn."""

    id: str
    """The id the message will keep in the history."""
    parts: tuple[Part, ...]
    """The content."""
    accepted_at: Time
    """When the message was accepted."""
    steers: bool = False
    """Whether it enters the next model request of the turn under way; if that ends first, it begins the next one."""
    wakeup: Wakeup | None = None
    """The schedule that sent the message; `None` if someone sent it."""

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


class ScheduledMessage(Value, frozen=True, kw_only=True):
    """A scheduled message of a chat: once, or at each time of a series."""

    id: str
    """The schedule's id."""
    parts: tuple[Part, ...]
    """What is sent."""
    due: Time
    """When it is sent next."""
    every: str | None = None
    """The cron expression of a series; `None` for a message that is sent once."""
    timezone: str | None = None
    """The time zone in which `every` counts."""
    when_busy: WhenDue = "queue"
    """What becomes of it while the chat works."""
    by: str = SYSTEM
    """Who scheduled it."""

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def wakeup(self) -> Wakeup:
        """The origin of the message once it is sent."""
        return Wakeup(schedule=self.id, by=self.by, due=self.due)


def parts_of(content: Content) -> tuple[TextPart | FilePart, ...]:
    """Return `content` as parts, without empty text.

    Raises:
        InvalidContent: nothing is left, a part is neither text nor a file, a file is invalid, or something cannot be
            stored.
    """
    try:
        unchecked = [TextPart(text=text(content))] if isinstance(content, str) else _given_parts(content)
        sound = [_sound(part) for part in unchecked]
    except Misfit as misfit:
        raise InvalidContent(f"the content of a message {misfit.problem}") from None
    parts = tuple(part for part in sound if not (isinstance(part, TextPart) and not part.text.strip()))
    if not parts:
        raise InvalidContent("the content of a message must hold text or a file; it was empty")
    return parts


def _given_parts(content: Any) -> Sequence[TextPart | FilePart]:
    try:
        return cast("Sequence[TextPart | FilePart]", _PARTS(content))
    except Misfit as misfit:
        wanted = f"must be text, or a sequence of TextPart and FilePart; content{misfit.place} {misfit.problem}"
        raise Misfit(wanted) from None


def size_of(parts: Iterable[Part]) -> int:
    """Return the size of parts in bytes: of text, inline data, and every other field, metadata as its JSON."""
    return sum(_size_of_field(field) for part in parts for field in asdict(part).values() if field is not None)


def _size_of_field(field: Any) -> int:
    return len(field.encode()) if isinstance(field, str) else len(msgspec.json.encode(field))


def _sound(part: TextPart | FilePart) -> TextPart | FilePart:
    """Return a part whose values can be stored: there are ways to make a part without its checks."""
    kind = TextPart if isinstance(part, TextPart) else FilePart
    made = kind(**{name: plain(getattr(part, name)) for name in kind.__struct_fields__})
    if isinstance(made, TextPart):
        return made
    file = inlined(made)
    fault = fault_of_part(file)
    if fault is not None:
        raise InvalidContent(fault)
    return file


def sound_file(file: FilePart) -> FilePart:
    """Return a file whose values can be stored.

    Raises:
        InvalidContent: something of it cannot, or it is no valid file.
    """
    try:
        return cast("FilePart", _sound(file))
    except Misfit as misfit:
        raise InvalidContent(f"what is said of a file {misfit.problem}") from None


def inlined(file: FilePart) -> FilePart:
    """Return a file whose content stands in its address, a `data:` URL, as one that is given inline."""
    content = None if file.url is None or file.data is not None else content_in(file.url)
    return file if content is None else replace(file, url=None, data=content)


def fault_of_part(file: FilePart) -> str | None:
    """Return what is wrong with a file and what would be right; `None` for a valid file."""
    fault = fault_of_file(file.media_type, file.data, file.url, blob=file.blob, size=file.size)
    return fault_of_lines(file.lines, file.media_type, file.url) if fault is None else fault


def files_in(parts: Iterable[Part]) -> Iterator[FilePart]:
    """Yield the files among the parts, and those that a tool attached to its result."""
    for part in parts:
        if isinstance(part, FilePart):
            yield part
        elif isinstance(part, ToolResultPart):
            yield from part.attachments


def length_of(part: Part) -> int:
    """Return about how many characters a part puts into a prompt."""
    match part:
        case TextPart() | ReasoningPart():
            return len(part.text)
        case FilePart():
            return part.size // 12 if part.size else len(part.data or part.url or "") // 16
        case _:
            return len(msgspec.json.encode(part))


def tokens_in(parts: Iterable[Part]) -> int:
    """Return a rough count of the tokens that parts put into a prompt: a quarter of their characters, rounded up."""
    return -(-sum(map(length_of, parts)) // CHARACTERS_PER_TOKEN)


def without_secrets(message: Message) -> Message:
    """Return the message as a client may see it: without what only the provider may read again."""
    is_reply = message.role == "assistant"
    parts = tuple(public_part(part, by_provider=is_reply) for part in message.parts)
    unchanged = all(public is part for public, part in zip(parts, message.parts, strict=True))
    return message if unchanged else replace(message, parts=parts)


def public_part(part: _AnyPart, *, by_provider: bool) -> _AnyPart:
    """Return a part without the provider's secrets: metadata, signatures, and what is encrypted in its tools' results.

    Args:
        part: of a message.
        by_provider: whether the message is a model's reply: a result in it comes from one of the provider's own tools.
    """
    changes: dict[str, Any] = {} if part.metadata is None else {"metadata": None}
    if isinstance(part, ReasoningPart) and part.signature is not None:
        changes["signature"] = None
    if isinstance(part, ToolResultPart):
        if by_provider:
            changes["output"] = _without_encrypted(part.output)
        if part.attachments:
            changes["attachments"] = tuple(public_part(file, by_provider=by_provider) for file in part.attachments)
    return replace(part, **changes) if changes else part


def _without_encrypted(output: Json) -> Json:
    """Return a provider's result without what is for its next request alone, as `encrypted_content` of a web search."""
    if isinstance(output, list):
        return [_without_encrypted(one) for one in output]
    if isinstance(output, dict):
        return {key: _without_encrypted(value) for key, value in output.items() if not _SECRET.match(key)}
    return output


def marker_in(message: Message) -> MarkerPart | None:
    part = message.parts[0] if message.parts else None
    return part if isinstance(part, MarkerPart) else None
