"""Corrected streams of pydantic-ai: their end, calls that share an index, repeated usage; and several models as one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec.structs import replace
from pydantic_ai.models import StreamedResponse

from turnwise.providers.protocol import Model, ModelPart, ModelReply, ModelRequest
from turnwise.providers.usage_and_prices import add_cost, add_reply_cost
from turnwise.states.model_errors import FALLBACK_KINDS, ModelError

_LAST_EVENTS: Final = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
"""The last events of streams of Anthropic's Messages and OpenAI's Responses."""
_LAST_DATA: Final = "[DONE]"
"""The last data of a stream of Chat Completions."""


class WatchedStream:
    """A stream that records its last event, separates calls with one index, and does not add up repeated usage.

    It changes private attributes of pydantic-ai and of the SDKs. Without the decoder of an SDK, `closed` stays false.
    """

    def __init__(self, stream: StreamedResponse) -> None:
        self.response = stream
        self.closed = False
        """Whether the last event of the provider's protocol has arrived. It is missing if the connection was lost."""
        self._record_last_event()
        self._separate_calls()
        self._replace_usage()

    def _record_last_event(self) -> None:
        response = getattr(self.response, "_response", None)
        decoder = getattr(getattr(response, "source", response), "_decoder", None)
        decode: Callable[[str], Any] | None = getattr(decoder, "decode", None)
        if decoder is None or decode is None:
            return

        def decoded(line: str) -> Any:
            event = decode(line)
            if event is not None and (event.event in _LAST_EVENTS or event.data.startswith(_LAST_DATA)):
                self.closed = True
            return event

        decoder.decode = decoded

    def _separate_calls(self) -> None:
        """Separate parallel calls with the same index, by their ids and names."""
        manager: Any = self.response._parts_manager  # noqa: SLF001
        handle, indexes = manager.handle_tool_call_delta, _CallIndexes()

        def handled(*, vendor_part_id: Hashable, tool_name: str | None = None, **more: Any) -> Any:
            index = indexes.index_of(vendor_part_id, more.get("tool_call_id"), begins=bool(tool_name))
            return handle(vendor_part_id=index, tool_name=tool_name, **more)

        manager.handle_tool_call_delta = handled

    def _replace_usage(self) -> None:
        """Have pydantic-ai take each reported usage as a running total.

        Some servers of Chat Completions report usage in every chunk, and pydantic-ai would add it up. Its setting for
        such servers also asks for usage in every chunk, which other servers refuse. So it is set after the request.
        """
        if hasattr(self.response, "_model_settings"):
            settings = self.response._model_settings or {}  # noqa: SLF001
            self.response._model_settings = {**settings, "openai_continuous_usage_stats": True}  # noqa: SLF001


class _CallIndexes:
    """Gives each call an index of its own, if a provider uses one index for several calls."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[str, Hashable]] = {}
        """The index of each call id, by the provider's index."""
        self._latest: dict[Hashable, Hashable] = {}

    def index_of(self, index: Hashable, call_id: str | None, *, begins: bool) -> Hashable:
        """Return the unique index of a fragment's call.

        A new id begins a call only with `begins`, because some servers change the id of a call between fragments.
        """
        if index is None:
            return None
        known = self._known.setdefault(index, {})
        if call_id and call_id not in known and (begins or not known):
            known[call_id] = (index, call_id) if known else index
            self._latest[index] = known[call_id]
        return known.get(call_id or "", self._latest.get(index, index))


_SILENT: Final = frozenset({"heartbeat", "usage"})


async def stream_of_first(models: Sequence[Model], request: ModelRequest) -> AsyncIterator[ModelPart]:
    """Yield the parts of the first model that answers, with its own price. After its first part no other is asked."""
    for model in models:
        speaks = False
        try:
            async with aclosing(cast("Any", model.stream(request))) as parts:
                async for part in parts:
                    speaks = speaks or part.type not in _SILENT
                    is_end = part.type == "finish"
                    yield replace(part, usage=add_cost(model, part.usage, datetime.now(UTC))) if is_end else part
        except ModelError as error:
            if speaks or model is models[-1] or error.kind not in FALLBACK_KINDS:
                raise
        else:
            return


async def reply_of_first(models: Sequence[Model], request: ModelRequest) -> ModelReply:
    """Return the reply of the first model that gives one, with its own price."""
    for model in models[:-1]:
        try:
            return add_reply_cost(model, await model.generate(request), datetime.now(UTC))
        except ModelError as error:
            if error.kind not in FALLBACK_KINDS:
                raise
    return add_reply_cost(models[-1], await models[-1].generate(request), datetime.now(UTC))
