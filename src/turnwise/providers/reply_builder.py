"""Joins a streamed reply into the parts of a message, and into the deltas that subscribers get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, count
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec.structs import replace

from turnwise.logger import logger
from turnwise.providers.argument_text import ARGUMENT_TEXT, whole
from turnwise.providers.part_builders import CallBuilder, PartBuilder, WholeBuilder, WordsBuilder
from turnwise.providers.protocol import ModelPart, ModelReply, PartType
from turnwise.states.events import PartDelta, PartEvent
from turnwise.states.files import content_in, has_unsafe_scheme
from turnwise.states.messages import (
    FilePart,
    Part,
    ReasoningPart,
    SourcePart,
    ToolCallPart,
    ToolResultPart,
    public_part,
)
from turnwise.states.model_errors import ModelError
from turnwise.states.names import Executor
from turnwise.states.usage import Usage
from turnwise.states.values.digests import as_json
from turnwise.states.values.plain import DEEPEST, is_shallow, shown, type_name, well_formed, well_formed_json

_TYPES: Final = get_args(PartType)
_LONGEST_TITLE: Final = 200
"""Characters of an address that stands for the title of a source."""


def read_arguments(_name: str, arguments: str | Mapping[str, Any], _call_id: str) -> dict[str, Any]:
    """Return the arguments as JSON, the object in JSON text, or other text under `ARGUMENT_TEXT`."""
    if isinstance(arguments, Mapping):
        return _object(arguments)
    value = whole(arguments)
    return {ARGUMENT_TEXT: arguments} if value is None else value


class ReplyBuilder:
    """Joins the parts of one streamed reply.

    Neighbouring text and neighbouring reasoning become one part each; a signature ends its reasoning part. A call
    is complete with its `tool_call`, which wins over fragments, or else from its fragments when its result or the
    finish comes. A provider's result stands right after its call; one that answers no call is left out.

    A delta costs one list entry until `take_shown` joins the new ones.

    Args:
        read: parses a call's arguments, given the tool's name, JSON text (never blank) or a mapping, and the call's id.
        price: adds the cost of the reply.
    """

    def __init__(
        self,
        *,
        read: Callable[[str, str | Mapping[str, Any], str], dict[str, Any]] = read_arguments,
        price: Callable[[ModelReply], ModelReply] = lambda reply: reply,
    ) -> None:
        self.finish: ModelPart | None = None
        self._read = read
        self._price = price
        self._builders: list[PartBuilder] = []
        self._news: dict[int, PartBuilder] = {}
        self._calls: list[CallBuilder] = []
        self._latest_calls: dict[str, CallBuilder] = {}
        self._call_ids: set[str] = set()
        self._usage: Usage | None = None

    @property
    def visible(self) -> bool:
        """Whether there is text, reasoning, or at least the start of a call to show."""
        return any(not isinstance(builder, WordsBuilder) or builder.pieces for builder in self._builders)

    @property
    def finished(self) -> bool:
        """Whether the finish came. A stream that ends without one was cut."""
        return self.finish is not None

    @property
    def has_news(self) -> bool:
        """Whether there is something to take and show."""
        return bool(self._news)

    def add(self, part: ModelPart) -> bool:
        """Add the next part; return whether there is something to take and show."""
        if part.type not in _TYPES:
            problem = f"the model yielded a part of type {shown(part.type)}; there are {', '.join(_TYPES)}"
            raise ModelError("server_error", retryable=False, message=problem)
        try:
            if part.type == "text_delta":  # most parts are
                self._add_words("text", part, None)
            else:
                self._add(part)
        except ModelError:
            raise
        except Exception as error:
            logger.exception("part_not_taken", error=error, part=part.type)
            problem = f"something in a {part.type!r} part is not what it must be ({type_name(error)})"
            raise ModelError("server_error", message=problem) from error
        return bool(self._news)

    def _add(self, part: ModelPart) -> None:
        match part.type:
            case "reasoning_delta":
                self._add_words("reasoning", part, _text(part.signature) or None)
            case "tool_call_delta":
                self._add_fragment(part)
            case "tool_call_start":
                self._open_call(part)
            case "tool_call":
                self._complete(self._call_to_complete(part), part)
            case "provider_result":
                self._add_result(part)
            case "source" | "file":
                self._place(WholeBuilder(len(self._builders), _whole(part)))
            case "usage":
                self._usage = part.usage
            case "finish":
                self.finish = replace(part, usage=self._usage) if part.usage is None and self._usage else part
                self._end_words()
                self._complete_open_calls()

    def take_shown(self) -> list[tuple[int, PartDelta]]:
        """Return the pieces that were not taken before, as (index of the part, piece); adjacent ones are joined."""
        pieces = [(builder.index, piece) for builder in self._news.values() for piece in builder.take()]
        self._news.clear()
        return pieces

    def partial_parts(self) -> tuple[Part, ...]:
        """Return the parts so far, without incomplete calls."""
        return _with_results_in_place(part for builder in self._builders if (part := builder.part()) is not None)

    def unfinished_calls(self) -> frozenset[str]:
        """Return the ids of the calls whose arguments are no whole JSON object as they came."""
        return frozenset(call.call_id for call in self._calls if not call.is_whole)

    def reply(self) -> ModelReply:
        """Return the reply; its `finish` has no stop reason if the model gave none."""
        finish = self.finish or ModelPart("finish", usage=self._usage)
        return self._price(ModelReply(self.partial_parts(), finish))

    def with_unshown(self, shown: Mapping[int, Part]) -> dict[int, Part]:
        """Return the shown parts by index, with signatures and metadata, which subscribers do not get.

        A part that was shown incompletely stays so. Reasoning without text keeps its place before shown parts.
        """
        last = max(shown, default=-1)
        parts = dict(shown)
        for builder in self._builders[: last + 1]:
            part = builder.part()
            silent = isinstance(part, ReasoningPart) and not part.text
            if part is not None and (silent or shown.get(builder.index) == public_part(part, by_provider=True)):
                parts[builder.index] = part
        return parts

    def _end_words(self) -> None:
        last = self._builders[-1] if self._builders else None
        if isinstance(last, WordsBuilder) and last.end():
            self._news[last.index] = last

    def _place(self, builder: PartBuilder) -> None:
        self._end_words()
        self._builders.append(builder)
        self._news[builder.index] = builder

    def _add_words(self, kind: Literal["text", "reasoning"], part: ModelPart, signature: str | None) -> None:
        text = "" + part.text  # raises if it is no text
        builder = self._builders[-1] if self._builders else None
        if (
            not isinstance(builder, WordsBuilder)
            or builder.kind != kind
            or builder.ended_before(text, signature, part.metadata)
        ):
            if not text and signature is None:
                return
            self._end_words()
            builder = WordsBuilder(len(self._builders), kind)
            self._builders.append(builder)
        if signature is not None:
            builder.signature = signature
        if part.metadata:
            builder.metadata = _merged(builder.metadata, part.metadata)
        if text:
            builder.pieces.append(text)
            self._news[builder.index] = builder

    def _open_call(self, part: ModelPart) -> CallBuilder:
        index = len(self._builders)
        call = CallBuilder(index, part.id or None, self._new_id(part.id or f"call_{index}"), _text(part.name) or "")
        call.executor = Executor(part.executor)
        call.metadata = _merged(None, part.metadata)
        if call.model_id is not None:
            self._latest_calls[call.model_id] = call
        self._calls.append(call)
        self._place(call)
        return call

    def _new_id(self, wanted: str) -> str:
        numbered = (f"{wanted}-{number}" for number in count(2))
        call_id = next(call_id for call_id in chain([wanted], numbered) if call_id not in self._call_ids)
        self._call_ids.add(call_id)
        return call_id

    def _add_fragment(self, part: ModelPart) -> None:
        newest = self._calls[-1] if self._calls else None
        call = (self._latest_calls.get(part.id) if part.id else newest) or self._open_call(part)
        if call.arguments is None and isinstance(part.arguments, str) and part.arguments:
            call.pieces.append(part.arguments)
            self._news[call.index] = call

    def _call_to_complete(self, part: ModelPart) -> CallBuilder:
        if part.id:
            call = self._latest_calls.get(part.id)
        else:
            call = next((call for call in self._calls if call.is_opened_for(part)), None)
        return self._open_call(part) if call is None or call.arguments is not None else call

    def _complete(self, call: CallBuilder, part: ModelPart) -> None:
        call.name = _text(part.name) or call.name
        call.executor = Executor(part.executor)
        call.metadata = _merged(call.metadata, part.metadata)
        arguments = part.arguments
        self._complete_with(call, arguments if isinstance(arguments, Mapping) else arguments or "".join(call.pieces))

    def _complete_with(self, call: CallBuilder, arguments: str | Mapping[str, Any]) -> None:
        blank = isinstance(arguments, str) and not arguments.strip()
        _check_depth("arguments", call, arguments)
        call.arguments = {} if blank else well_formed_json(self._read(call.name, arguments, call.call_id))
        call.is_whole = isinstance(arguments, Mapping) or whole(arguments) is not None
        self._news[call.index] = call

    def _complete_open_calls(self) -> None:
        for call in self._calls:
            if call.arguments is None:
                self._complete_with(call, "".join(call.pieces))

    def _add_result(self, part: ModelPart) -> None:
        call = next((call for call in self._calls if call.is_answered_by(part)), None)
        if call is None:
            return
        call.answered = True
        if call.arguments is None:
            call.executor = Executor.provider
            self._complete_with(call, "".join(call.pieces))
        _check_depth("a result", call, part.output)
        output, metadata = as_json(well_formed_json(part.output)), _merged(None, part.metadata)
        result = ToolResultPart(call_id=call.call_id, name=call.name, output=output, metadata=metadata)
        self._place(WholeBuilder(len(self._builders), result))


def _check_depth(what: str, call: CallBuilder, value: Any) -> None:
    if not is_shallow(value):
        problem = f"it called {call.name!r} with {what} nested deeper than {DEEPEST} levels"
        raise ModelError("server_error", retryable=False, message=problem)


def join(parts: Iterable[ModelPart]) -> ModelReply:
    """Return the reply that `parts` make."""
    builder = ReplyBuilder()
    for part in parts:
        builder.add(part)
    return builder.reply()


def parts_from_shown(events: Iterable[PartEvent], builder: ReplyBuilder | None = None) -> tuple[Part, ...]:
    """Return the parts that the stored part events of ONE attempt make.

    Text is exactly as it was shown; incomplete calls are left out. Only the `builder` of the attempt has signatures
    and metadata.
    """
    words: dict[int, WordsBuilder] = {}
    whole: dict[int, Part] = {}
    for event in events:
        piece = event.part
        if piece.complete is not None:
            whole[event.index] = msgspec.convert(piece.complete, Part)
        elif piece.delta and piece.type in ("text", "reasoning"):
            words.setdefault(event.index, WordsBuilder(event.index, piece.type)).pieces.append(piece.delta)
    parts = {index: part for index, text in words.items() if (part := text.part()) is not None} | whole
    if builder is not None:
        parts = builder.with_unshown(parts)
    return _with_results_in_place(parts[index] for index in sorted(parts))


def _with_results_in_place(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts with each provider's result right after its call."""
    ordered = list(parts)
    results = {part.call_id: part for part in ordered if isinstance(part, ToolResultPart)}
    placed: list[Part] = []
    for part in ordered:
        if isinstance(part, ToolResultPart):
            continue
        placed.append(part)
        if isinstance(part, ToolCallPart) and part.call_id in results:
            placed.append(results[part.call_id])
    return tuple(placed)


def _whole(part: ModelPart) -> SourcePart | FilePart:
    """Return a source or a file. With an address that is unsafe as a link, it becomes a source without an address."""
    metadata, url, name, title = _merged(None, part.metadata), _text(part.url), _text(part.name), _text(part.title)
    data = _text(part.data)
    if part.type == "file" and data is None and url is not None:
        data = content_in(url)
    is_unsafe = url is not None and has_unsafe_scheme(url)
    if part.type == "file" and (data is not None or not is_unsafe):
        media_type = _text(part.media_type) or "application/octet-stream"
        return FilePart(media_type=media_type, data=data, url=None if is_unsafe else url, name=name, metadata=metadata)
    if is_unsafe:
        shown_as = (title or name or url or "")[:_LONGEST_TITLE]
        return SourcePart(title=shown_as, id=_text(part.id), source_type="document", metadata=metadata)
    kind = part.source_type or "url"
    return SourcePart(url=url or "", title=title, id=_text(part.id), source_type=kind, metadata=metadata)


def _text(given: str | None) -> str | None:
    return None if given is None else well_formed(given)


def _object(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as it will be read from a store."""
    return cast("dict[str, Any]", as_json(well_formed_json(dict(given))))


def _merged(old: dict[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {**(old or {}), **_object(new)} if new else old
