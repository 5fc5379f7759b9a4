"""Reading a response: what a provider streams back, from pydantic-ai's events, becomes turnwise's parts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic_ai import messages as theirs
from pydantic_ai.models import StreamedResponse
from pydantic_core import to_jsonable_python

from turnwise.providers.argument_text import whole
from turnwise.providers.protocol import ModelPart
from turnwise.providers.pydantic_ai.provider_data import ProviderOrigin, stored_compaction
from turnwise.providers.reply_outcome import ReplyOutcome, is_rejected, outcome_of, stop_reason_of
from turnwise.states.model_errors import REJECTED_REPLY, ModelError
from turnwise.states.names import Executor
from turnwise.states.usage import Usage, reported


class ResponseReader:
    """Reads one reply of a provider, part by part, as it arrives: one response, or several if the provider pauses.

    A call is complete as soon as its arguments are a whole JSON object. A call whose arguments cannot be read is
    yielded when its response ends.

    Args:
        origin: who made the reply.
        price: adds what one response costs, as of its time: of several each has a price of its own.
    """

    def __init__(
        self, origin: ProviderOrigin, price: Callable[[Usage | None, datetime], Usage | None] = lambda usage, _at: usage
    ) -> None:
        self._origin = origin
        self._price = price
        self._before: Usage | None = None
        """What the responses have used that the provider paused."""
        self._open: dict[int, theirs.ToolCallPart | theirs.NativeToolCallPart] = {}
        self._ids: dict[int, str] = {}
        """The ids under which the open calls began: some servers change an id later, or give it to several calls."""
        self._began_as: dict[str, str] = {}
        """The id under which a call began, by every id that it has had since; of several calls the last one's."""
        self._latest: theirs.ModelResponsePart | None = None
        self._compaction: tuple[int, theirs.CompactionPart] | None = None
        """A compaction, with its index: it may come again, with more, until the next part starts."""
        self._cited: set[tuple[str, str | None, str | None]] = set()
        self._measured: Usage | None = None
        """What was last yielded of this response's usage."""

    def read(self, event: theirs.ModelResponseStreamEvent) -> Iterator[ModelPart]:
        """Yield the parts that an event brings."""
        match event:
            case theirs.PartStartEvent(part=theirs.CompactionPart() as part):
                yield from self._compaction_before(event.index)
                self._compaction = event.index, part
            case theirs.PartStartEvent():
                yield from self._compaction_before(event.index)
                yield from self.begin(event.index, event.part)
            case theirs.PartDeltaEvent():
                yield from self._go_on(event.index, event.delta)
            case theirs.PartEndEvent():
                yield from self._end(event.index, event.part)

    def measure(self, response: theirs.ModelResponse | StreamedResponse) -> Iterator[ModelPart]:
        """Yield the usage so far, if it has changed."""
        measured = usage_of(response)
        if measured != self._measured:
            self._measured = measured
            yield ModelPart("usage", usage=self._current_usage(response))

    def pause(self, response: theirs.ModelResponse) -> Iterator[ModelPart]:
        """Yield what was left open of a response that the provider paused; what is read then is of the next one."""
        yield from self._rest(response)
        self._before, self._measured = self._sum(response), None

    def begin(self, index: int, part: theirs.ModelResponsePart) -> Iterator[ModelPart]:
        """Yield the parts that one of the provider's parts brings, as it starts or when it came whole."""
        before, self._latest = self._latest, part
        match part:
            case theirs.TextPart():
                yield ModelPart("text_delta", text=part.content or "", metadata=self._metadata(part))
                yield from self._sources(part.citations)
            case theirs.ThinkingPart():
                gap = "\n\n" if _is_next_paragraph(before, part) else ""
                yield self._thought(part, gap + part.content)
            case theirs.ToolCallPart() | theirs.NativeToolCallPart():
                is_new = index not in self._open
                call_id = self._note(index, part)
                if is_new:
                    yield ModelPart("tool_call_start", id=call_id, name=part.tool_name, executor=_executor(part))
                    if isinstance(part.args, str) and part.args:
                        yield ModelPart("tool_call_delta", id=call_id, arguments=part.args)
            case theirs.NativeToolReturnPart():
                call_id = part.tool_call_id
                yield from self._complete([place for place, call in self._open.items() if call.tool_call_id == call_id])
                metadata = self._origin.metadata(part.provider_name, None, part.provider_details)
                output = to_jsonable_python(part.content, inf_nan_mode="null")
                began_as = self._began_as.get(call_id, call_id)
                yield ModelPart("provider_result", call_id=began_as, output=output, metadata=metadata)
            case theirs.CompactionPart():
                yield stored_compaction(part, self._origin)
            case theirs.FilePart():
                data = b64encode(part.content.data).decode()
                media_type = part.content.media_type
                yield ModelPart("file", media_type=media_type, data=data, metadata=self._metadata(part))

    def finish(
        self, response: theirs.ModelResponse, *, closed: bool, otherwise: str | None = None
    ) -> Iterator[ModelPart]:
        """Yield the open parts, the provider's explanation of a refusal, then the finish.

        A response without a finish reason, or `otherwise`, was cut, unless the provider's last event `closed` it.
        """
        word = _finish_word(response) or otherwise
        if word is None and not (closed and response.parts):
            raise ModelError("network", message="the stream was cut: it ended without a finish reason")
        announces = outcome_of(word) is ReplyOutcome.unknown or response.finish_reason == "tool_call"
        is_empty = announces and not any(part.has_content() for part in response.parts)
        if response.finish_reason == "error" or is_rejected(word) or is_empty:
            ending = "without a word" if word is None else f"with {word!r}"
            raise ModelError(REJECTED_REPLY, message=f"the provider ended the reply {ending}", finish_reason=word)
        yield from self._rest(response)
        if refusal := _refusal_text(response):
            gap = "\n\n" if any(isinstance(part, theirs.TextPart) and part.content for part in response.parts) else ""
            yield ModelPart("text_delta", text=gap + refusal)
        metadata: dict[str, Any] = {
            "reason": word,
            "response_id": response.provider_response_id,
            "response_model": response.model_name,
        }
        if self._before is not None:
            metadata["context_tokens"] = reported(usage_of(response)).input_tokens
        yield ModelPart(
            "finish", stop_reason=stop_reason_of(word), usage=self._current_usage(response), metadata=metadata
        )

    def _current_usage(self, response: theirs.ModelResponse | StreamedResponse) -> Usage | None:
        """Return the usage of the reply so far; the caller prices a single response."""
        return usage_of(response) if self._before is None else self._sum(response)

    def _sum(self, response: theirs.ModelResponse | StreamedResponse) -> Usage:
        usage = reported(self._price(usage_of(response), response.timestamp))
        return usage if self._before is None else self._before + usage

    def _rest(self, response: theirs.ModelResponse) -> Iterator[ModelPart]:
        """Yield the calls and the sources that only the whole response holds."""
        yield from self._compaction_before(None)
        for index, part in enumerate(response.parts):
            if index in self._open and isinstance(part, theirs.ToolCallPart | theirs.NativeToolCallPart):
                self._note(index, part)
        yield from self._complete(list(self._open))
        for part in response.parts:
            if isinstance(part, theirs.TextPart):
                yield from self._sources(part.citations)

    def _compaction_before(self, index: int | None) -> Iterator[ModelPart]:
        if self._compaction is not None and self._compaction[0] != index:
            self._latest = self._compaction[1]
            yield stored_compaction(self._compaction[1], self._origin)
            self._compaction = None

    def _go_on(self, index: int, delta: theirs.ModelResponsePartDelta) -> Iterator[ModelPart]:
        match delta:
            case theirs.TextPartDelta() if delta.content_delta:  # `None` of a delta whose type the SDK does not know
                yield ModelPart("text_delta", text=delta.content_delta)
            case theirs.ThinkingPartDelta():
                signed = delta.signature_delta if isinstance(self._latest, theirs.ThinkingPart) else None
                if delta.content_delta or signed:
                    yield ModelPart("reasoning_delta", text=delta.content_delta or "", signature=signed or None)
            case theirs.ToolCallPartDelta(args_delta=str(fragment)) if fragment and index in self._open:
                yield ModelPart("tool_call_delta", id=self._ids[index], arguments=fragment)

    def _end(self, index: int, part: theirs.ModelResponsePart) -> Iterator[ModelPart]:
        match part:
            case theirs.TextPart():
                yield ModelPart("text_delta", metadata=self._metadata(part))
                yield from self._sources(part.citations)
            case theirs.ThinkingPart():
                yield self._thought(part, "")
            case theirs.ToolCallPart() | theirs.NativeToolCallPart() if index in self._open:
                self._note(index, part)
                if _is_readable(part.args):
                    yield from self._complete([index])

    def _thought(self, part: theirs.ThinkingPart, text: str) -> ModelPart:
        return ModelPart("reasoning_delta", text=text, signature=part.signature or None, metadata=self._metadata(part))

    def _note(self, index: int, part: theirs.ToolCallPart | theirs.NativeToolCallPart) -> str:
        """Store the present state of a call; return the id under which it began."""
        if index not in self._open:
            is_taken = part.tool_call_id in self._ids.values()
            self._ids[index] = f"{part.tool_call_id}-{index}" if is_taken else part.tool_call_id
        self._open[index] = part
        self._began_as[part.tool_call_id] = self._ids[index]
        return self._ids[index]

    def _complete(self, places: Iterable[int]) -> Iterator[ModelPart]:
        for place in places:
            call = self._open.pop(place)
            yield ModelPart(
                "tool_call",
                id=self._ids.pop(place),
                name=call.tool_name,
                arguments=call.args,
                executor=_executor(call),
                metadata=self._metadata(call),
            )

    def _sources(self, citations: Iterable[theirs.Citation] | None) -> Iterator[ModelPart]:
        for citation in citations or ():
            for source in citation.sources:
                part = _source(source)
                place = (part.url or "", part.id, None if part.url else part.title)
                if any(place) and place not in self._cited:
                    self._cited.add(place)
                    yield part

    def _metadata(
        self,
        part: theirs.TextPart | theirs.ThinkingPart | theirs.ToolCallPart | theirs.NativeToolCallPart | theirs.FilePart,
    ) -> dict[str, Any] | None:
        return self._origin.metadata(part.provider_name, part.id, part.provider_details)


def usage_of(response: theirs.ModelResponse | StreamedResponse) -> Usage | None:
    """Return the reported usage: figures that the provider left out are unknown, not zero.

    For Anthropic's thinking tokens, and Google's cached ones, pydantic-ai does not distinguish the two.
    """
    reported = response.usage
    # A figure that was not reported is no attribute of the object; the class has a zero.
    counts: dict[str, Any] = {} if reported.unmeasured_requests else vars(reported)
    if (response.provider_name or "").startswith("google"):
        counts = {name: count for name, count in counts.items() if count or not name.startswith("cache_")}
    usage = Usage(
        input_tokens=counts.get("input_tokens"),
        output_tokens=counts.get("output_tokens"),
        reasoning_tokens=counts.get("output_reasoning_tokens"),
        cache_read_tokens=counts.get("cache_read_tokens"),
        cache_write_tokens=counts.get("cache_write_tokens"),
    )
    return usage if usage.known else None


def _is_next_paragraph(before: theirs.ModelResponsePart | None, part: theirs.ThinkingPart) -> bool:
    """Whether the provider continues one reasoning in another part: turnwise joins them."""
    return isinstance(before, theirs.ThinkingPart) and part.id is not None and before.id == part.id


def _source(source: theirs.CitationSource) -> ModelPart:
    if isinstance(source, theirs.WebCitationSource):
        return ModelPart("source", url=source.url, title=source.title)
    return ModelPart("source", id=source.document_id, title=source.title, source_type="document")


def _executor(part: theirs.ToolCallPart | theirs.NativeToolCallPart) -> Executor:
    return Executor.provider if isinstance(part, theirs.NativeToolCallPart) else Executor.local


def _is_readable(args: str | Mapping[str, Any] | None) -> bool:
    return whole(args) is not None if isinstance(args, str) else bool(args)


def _finish_word(response: theirs.ModelResponse) -> str | None:
    """Return the provider's own finish reason.

    pydantic-ai removes that of a refusal, and reports `stop` and `tool_call` for streams without a finish reason, too.
    """
    if response.finish_reason == "content_filter":
        word = (response.provider_details or {}).get("finish_reason")
        return word if outcome_of(word) is ReplyOutcome.refused else "content_filter"
    word = (response.provider_details or {}).get("finish_reason")
    return word or (response.finish_reason if response.finish_reason in ("length", "error") else None)


def _refusal_text(response: theirs.ModelResponse) -> str:
    """Return the explanation of a provider that refused to answer."""
    details = response.provider_details or {}
    texts = (details.get(name) for name in ("refusal", "block_reason_message"))
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")
