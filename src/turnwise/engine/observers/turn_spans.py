"""The span of a turn: the process that accepts a message makes its ids, the process that ends the turn makes the span.

A process cannot hand an OpenTelemetry span to another, but it can hand on the span's ids. They are stored with the
turn, model calls and tool runs of the turn become children of them, and the process that commits the turn's end makes
the span, with the time at which the turn began. So a turn has one span, even if processes that ran it were killed.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from turnwise.extras import needing

with needing("observability", __name__):
    from opentelemetry import context, trace

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TurnSpan(msgspec.Struct, frozen=True):
    """The ids of a turn's span."""

    trace_id: int
    span_id: int
    flags: int
    parent_id: int | None = None
    """The span in which the message was accepted, if one was current then."""

    @classmethod
    def start(cls, tracer: trace.Tracer) -> TurnSpan | None:
        """Return the ids of a new span below the current one; `None` if it is not recorded."""
        parent = trace.get_current_span().get_span_context()
        made = tracer.start_span("invoke_agent").get_span_context()
        if not made.is_valid:
            return None
        return cls(made.trace_id, made.span_id, int(made.trace_flags), parent.span_id if parent.is_valid else None)

    @classmethod
    def stored(cls, text: str | None) -> TurnSpan | None:
        """Return the ids in the text that a turn has stored; `None` if another observer wrote the text."""
        version, *ids = (text or "").split("-")
        try:
            trace_id, span_id, flags, *parent = (int(number, 16) for number in ids)
        except ValueError:
            return None
        return cls(trace_id, span_id, flags, *parent[:1]) if version == "00" else None

    def __str__(self) -> str:
        """Return the ids as a `traceparent`, with the id of the parent behind it."""
        ids = f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"
        return ids if self.parent_id is None else f"{ids}-{self.parent_id:016x}"

    @property
    def inside(self) -> context.Context:
        """The context in which spans become children of this one."""
        return self._context(self.span_id)

    def recorded(
        self, tracer: trace.Tracer, name: str, start: datetime, attributes: dict[str, Any]
    ) -> trace.Span | None:
        """Return the span, which the caller ends; `None` if its trace is not sampled.

        The ids cannot be given to a tracer that is not the SDK's: its span becomes a child of the span with these ids.
        """
        if not self.flags & trace.TraceFlags.SAMPLED:
            return None
        above = context.Context() if self.parent_id is None else self._context(self.parent_id)
        if hasattr(tracer, "id_generator"):
            tracer = copy.copy(tracer)
            tracer.id_generator = _FixedIds(self, tracer.id_generator)
        else:
            above = self.inside
        return tracer.start_span(name, above, attributes=attributes, start_time=nanoseconds(start))

    def _context(self, span_id: int) -> context.Context:
        span_context = trace.SpanContext(
            self.trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(self.flags)
        )
        return trace.set_span_in_context(trace.NonRecordingSpan(span_context), context.Context())


def nanoseconds(at: datetime) -> int:
    """Return a time in nanoseconds since 1970, as OpenTelemetry counts it."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


class _FixedIds:
    """A tracer's id generator that always generates the ids of one turn's span."""

    def __init__(self, span: TurnSpan, generator: Any) -> None:
        self._span = span
        self._generator = generator

    def generate_trace_id(self) -> int:
        return self._span.trace_id

    def generate_span_id(self) -> int:
        return self._span.span_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)
