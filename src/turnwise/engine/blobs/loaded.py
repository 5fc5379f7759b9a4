"""The files of a request: loaded from the file store, or left out because a provider refuses them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from turnwise.engine.blobs.files import Files, append_notes
from turnwise.persistence.blobs.protocol import BlobGone, intact
from turnwise.providers.protocol import Model, ModelRequest
from turnwise.states.errors import StoreError
from turnwise.states.facts import Facts
from turnwise.states.files import is_digest
from turnwise.states.left_out import MOST_LEFT_OUT, REFUSED, LeftOut, note_of_file
from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    files_in,
)
from turnwise.states.model_errors import ModelError
from turnwise.states.names import Executor

Refuse = Callable[[str, int], str | None]
"""Returns why a model does not take a file of that media type and size; `None` if it does."""


async def with_files(files: Files, request: ModelRequest, model: Model) -> ModelRequest:
    """Return the request with the bytes of the files that its messages refer to, or a note in place of a file.

    A note replaces a file that the model refuses, that is gone or damaged, and older files if all of them together are
    more than `Settings.request_file_bytes`.
    """
    if not any(_refers(message) for message in request.messages):
        return request
    refuse: Refuse = getattr(model, "refuses_file", lambda _kind, _size: None)
    return await _Loading(files, request.chat_id, refuse).done(request)


def _refers(message: Message) -> bool:
    return any(map(_is_filled, files_in(message.parts)))


def _is_filled(file: FilePart) -> bool:
    return file.blob is not None or file.lines is not None


class _Loading(msgspec.Struct):
    files: Files
    chat_id: str
    refuse: Refuse
    loaded: dict[str, str] = msgspec.field(default_factory=dict)
    """Blobs in base64, by digest: the same one is loaded once."""
    faults: dict[tuple[str, str], str] = msgspec.field(default_factory=dict)
    """Why a blob is left out, by digest and media type."""

    async def done(self, request: ModelRequest) -> ModelRequest:
        await self._choose(request.messages)
        messages = [
            replace(message, parts=tuple(map(self._filled_part, message.parts))) if _refers(message) else message
            for message in request.messages
        ]
        return replace(request, messages=messages)

    async def _choose(self, messages: Sequence[Message]) -> None:
        """Load files from the newest on, until the room is used up."""
        held = await self._held(messages)
        room = self.files.settings.request_file_bytes
        for file, digest in _newest_first(messages):
            key, size = (digest, file.media_type), held.get(digest)
            if digest in self.loaded or key in self.faults:
                continue
            fault = "it is gone" if size is None else self.refuse(file.media_type, size)
            if fault is None and size is not None:
                room -= size  # a file that does not fit leaves no room for older files either
                fault = _NO_ROOM if room < 0 else await self._load(digest)
            if fault is not None:
                self.faults[key] = fault

    async def _held(self, messages: Sequence[Message]) -> Mapping[str, int]:
        digests = {digest for _, digest in _newest_first(messages) if is_digest(digest)}
        try:
            await self.files.check_place()
            return await self.files.store.held_files(self.chat_id, digests)
        except StoreError as error:
            raise _unreachable(error) from error

    async def _load(self, digest: str) -> str | None:
        try:
            whole = b"".join([piece async for piece in intact(digest, self.files.blobs.read(digest))])
        except BlobGone as gone:
            return "it is gone" if gone.problem == "is not there" else f"it {gone.problem}"
        except StoreError as error:
            raise _unreachable(error) from error
        self.loaded[digest] = b64encode(whole).decode()
        return None

    def _filled_part(self, part: Part) -> Part:
        if isinstance(part, FilePart) and _is_filled(part):
            fault = self._find_fault(part)
            note = note_of_file(part.name, part.media_type, fault or "")
            return self._with_bytes(part) if fault is None else TextPart(text=note)
        if isinstance(part, ToolResultPart) and part.attachments:
            return self._filled_result(part)
        return part

    def _filled_result(self, result: ToolResultPart) -> ToolResultPart:
        faults = [(file, self._find_fault(file)) for file in result.attachments]
        files = tuple(self._with_bytes(file) for file, fault in faults if fault is None)
        notes = [note_of_file(file.name, file.media_type, fault) for file, fault in faults if fault is not None]
        return replace(result, output=append_notes(result.output, notes), attachments=files)

    def _find_fault(self, file: FilePart) -> str | None:
        if file.blob not in (None, *self.loaded):
            return self.faults.get((file.blob or "", file.media_type))
        if file.lines is not None and file.lines[0] > (count := len(self._split_lines(file))):
            return f"it has {count} lines, and the part begins at line {file.lines[0]}"
        return None

    def _with_bytes(self, file: FilePart) -> FilePart:
        if file.lines is not None:
            first, last = file.lines
            name = f"{file.name or 'file'}, lines {first} to {last}"
            data = b64encode(b"".join(self._split_lines(file)[first - 1 : last])).decode()
            return replace(file, data=data, blob=None, size=None, name=name, lines=None)
        if file.blob is None:
            return file
        return replace(file, data=self.loaded[file.blob], blob=None, size=None)

    def _split_lines(self, file: FilePart) -> list[bytes]:
        data = file.data if file.blob is None else self.loaded[file.blob]
        return b64decode(data or "").splitlines(keepends=True)


_NO_ROOM: Final = "newer files have taken the room that a request has for files"


def _newest_first(messages: Sequence[Message]) -> Iterator[tuple[FilePart, str]]:
    """Yield the files that refer to a blob, with its digest."""
    for message in reversed(messages):
        for file in reversed([*files_in(message.parts)]):
            if file.blob is not None:
                yield file, file.blob


def _unreachable(error: StoreError) -> ModelError:
    return ModelError("network", message=f"the files of the request could not be loaded: {error.problem}")


_EMPTY: Final = ReasoningPart()
"""No adapter sends this part. It keeps the positions of the parts after it."""


def model_key(model: Model) -> str:
    return f"{model.provider}:{model.name}"


def newly_refused(error: ModelError, model: Model, messages: Iterable[Message], facts: Facts) -> list[LeftOut]:
    """Return the parts of these messages that the error names and that are not left out yet."""
    if error.kind != "bad_request":
        return []
    ids, key, step = {message.id for message in messages if message.position}, model_key(model), facts.step.number
    known = {one.place for one in facts.left_out}
    named = [LeftOut(message_id=one, model=key, part=part, file=file, step=step) for one, part, file in error.refused]
    new = [one for one in dict.fromkeys(named) if one.message_id in ids and one.place not in known]
    return new if len(known) + len(new) <= MOST_LEFT_OUT else []


def message_refused(error: ModelError, facts: Facts) -> str | None:
    """Return the id of the refused message: the one that the error names, or one with parts left out in this step."""
    named = [one.message_id for one in error.refused]
    before = [one.message_id for one in reversed(facts.left_out) if one.step == facts.step.number]
    return next(iter([*named, *before]), None) if error.kind == "bad_request" else None


def without_refused(messages: Sequence[Message], left_out: Iterable[LeftOut], model: Model) -> list[Message]:
    """Return the messages with notes in place of the parts that the model's provider has refused.

    A refused call and its result both become text, because a request may not have one without the other. Reasoning is
    left out.
    """
    key, refused = model_key(model), dict[str, list[LeftOut]]()
    for one in left_out:
        if one.model == key:
            refused.setdefault(one.message_id, []).append(one)
    calls_as_text: set[str] = set()
    sent: list[Message] = []
    for message in messages:
        left = _without(message, refused[message.id], calls_as_text) if message.id in refused else message
        is_text = left.result is not None and left.result.call_id in calls_as_text
        sent.append(replace(left, role="user", parts=_result_as_text(left.parts)) if is_text else left)
    return sent


def _without(message: Message, refused: Sequence[LeftOut], calls_as_text: set[str]) -> Message:
    parts = list(message.parts)
    for place, part in enumerate(message.parts):
        files = [one.file for one in refused if one.part in (None, place)]
        if isinstance(part, ToolResultPart) and files and None not in files:
            parts[place] = _without_files(part, files)
        elif files:
            parts[place] = _EMPTY if message.role == "assistant" and isinstance(part, ToolResultPart) else _note(part)
            if isinstance(part, ToolCallPart):
                calls_as_text.add(part.call_id)
    return replace(message, parts=tuple(parts))


def _without_files(result: ToolResultPart, places: Sequence[int | None]) -> ToolResultPart:
    files = [*enumerate(result.attachments)]
    notes = [note_of_file(file.name, file.media_type, REFUSED) for place, file in files if place in places]
    rest = tuple(file for place, file in files if place not in places)
    return replace(result, output=append_notes(result.output, notes), attachments=rest)


def _note(part: Part) -> Part:
    match part:
        case FilePart():
            return TextPart(text=note_of_file(part.name, part.media_type, REFUSED))
        case TextPart():
            return TextPart(text=f"[A text is left out here: {REFUSED}.]")
        case ToolCallPart(executor=Executor.provider):
            return _EMPTY
        case ToolCallPart():
            return TextPart(text=f"[{part.name} was called with {json.dumps(part.arguments, ensure_ascii=False)}]")
        case ToolResultPart():
            return replace(part, output=f"[The result is left out here: {REFUSED}.]", attachments=())
        case _:
            return _EMPTY


def _result_as_text(parts: Sequence[Part]) -> tuple[Part, ...]:
    texts: list[Part] = []
    for part in parts:
        if isinstance(part, ToolResultPart):
            output = part.output if isinstance(part.output, str) else json.dumps(part.output, ensure_ascii=False)
            texts += [TextPart(text=f"[{part.name} returned: {output}]"), *part.attachments]
    return tuple(texts)
