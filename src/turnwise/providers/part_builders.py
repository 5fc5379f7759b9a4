"""Part builders: the parts of an unfinished reply, each with the pieces that were not shown yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from turnwise.providers.protocol import ModelPart
from turnwise.states.events import PartDelta
from turnwise.states.messages import (
    FilePart,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    public_part,
)
from turnwise.states.names import Executor
from turnwise.states.values.plain import well_formed, without_half
from turnwise.states.values.values import fields_of


class WordsBuilder(msgspec.Struct):
    """A text or reasoning part under way."""

    index: int
    kind: Literal["text", "reasoning"]
    pieces: list[str] = msgspec.field(default_factory=list)
    taken: int = 0
    signature: str | None = None
    metadata: dict[str, Any] | None = None

    def ended_before(self, text: str, signature: str | None, metadata: Mapping[str, Any] | None) -> bool:
        """Whether a delta begins another part: this one is signed already, or the delta has another id or kind."""
        if metadata is None and self.metadata is None and self.signature is None:
            return False
        signed = self.signature is not None and signature != self.signature
        own, its = self.metadata or {}, metadata or {}
        renamed = own.get("id") is not None and its.get("id", own["id"]) != own["id"]
        return (signed or renamed or own.get("kind") != its.get("kind")) and bool(text or signature)

    def part(self) -> Part | None:
        """Return the join of the pieces; `None` while no whole character of a text has come."""
        text = well_formed(without_half("".join(self.pieces)))
        if self.kind == "text":
            return TextPart(text=text, metadata=self.metadata) if text else None
        return ReasoningPart(text=text, signature=self.signature, metadata=self.metadata)

    def end(self) -> bool:
        """Replace half a surrogate pair at the end; return whether there was one."""
        waits = bool(self.pieces) and without_half(self.pieces[-1]) != self.pieces[-1]
        if waits:
            self.pieces[-1] = f"{self.pieces[-1][:-1]}\ufffd"
        return waits

    def take(self) -> Iterator[PartDelta]:
        """Yield the deltas that were not shown yet."""
        if text := _taken(self):
            yield PartDelta(type=self.kind, delta=text)


class CallBuilder(msgspec.Struct):
    """A tool call under way; complete once it has `arguments`."""

    index: int
    model_id: str | None
    call_id: str
    name: str
    executor: Executor = Executor.local
    pieces: list[str] = msgspec.field(default_factory=list)
    taken: int = 0
    arguments: dict[str, Any] | None = None
    is_whole: bool = False
    """Whether its arguments came as a JSON object, without repairs."""
    answered: bool = False
    metadata: dict[str, Any] | None = None

    def is_opened_for(self, complete: ModelPart) -> bool:
        """Whether a complete call without an id is this one."""
        return self.model_id is None and self.arguments is None and self.name in {"", complete.name}

    def is_answered_by(self, result: ModelPart) -> bool:
        """Whether the provider's result answers this call."""
        runs_there = self.arguments is None or self.executor is Executor.provider
        return self.model_id == (result.call_id or None) and runs_there and not self.answered

    def part(self) -> ToolCallPart | None:
        """Return the call, `None` while it is not complete."""
        if self.arguments is None:
            return None
        return ToolCallPart(
            call_id=self.call_id,
            name=self.name,
            arguments=self.arguments,
            executor=self.executor,
            metadata=self.metadata,
        )

    def take(self) -> Iterator[PartDelta]:
        """Yield the deltas that were not shown yet: fragments, then the complete call."""
        piece = PartDelta(type="tool_call", call_id=self.call_id, name=self.name, executor=self.executor)
        part = self.part()
        fragments = _taken(self)
        if fragments or part is None:
            yield replace(piece, delta=fragments)
        if part is not None:
            yield replace(piece, complete=_as_shown(part))


class WholeBuilder(msgspec.Struct):
    """A part that comes in one piece."""

    index: int
    whole: ToolResultPart | SourcePart | FilePart

    def part(self) -> Part:
        """Return the part."""
        return self.whole

    def take(self) -> Iterator[PartDelta]:
        """Yield the part; it is shown once."""
        complete = _as_shown(self.whole)
        call_id, name = complete.get("call_id"), complete.get("name")
        yield PartDelta(type=self.whole.type, call_id=call_id, name=name, complete=complete)


PartBuilder = WordsBuilder | CallBuilder | WholeBuilder


def _taken(builder: WordsBuilder | CallBuilder) -> str:
    """Take and return the new text; half a surrogate pair waits for its other half."""
    text = "".join(builder.pieces[builder.taken :])
    whole = without_half(text)
    builder.pieces[builder.taken :] = filter(None, (whole, text[len(whole) :]))
    builder.taken += bool(whole)
    return well_formed(whole)


def _as_shown(part: Part) -> dict[str, Any]:
    fields = fields_of(public_part(part, by_provider=True))
    del fields["metadata"]
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields))  # as readers of the store see it
    return shown
