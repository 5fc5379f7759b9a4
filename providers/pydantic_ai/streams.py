"""Streams of pydantic-ai: what it leaves out of them, or mixes up, and turnwise has to know."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from pydantic_ai.models import StreamedResponse

_LAST_EVENTS: Final = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
"""The events with which Anthropic's Messages and OpenAI's Responses close a stream."""
_LAST_DATA: Final = "[DONE]"
"""What closes a stream of Chat Completions."""


class WatchedStream:
    """A stream whose closing mark is noted, whose calls stay apart, and whose usage is not added up.

    All three reach into attributes of pydantic-ai and of the SDKs that are not public: where one is missing, the stream
    is read as it is, and never counts as closed.
    """

    def __init__(self, stream: StreamedResponse) -> None:
        self.response = stream
        self.closed = False
        """Whether the provider has sent what closes a stream of its dialect; a stream that breaks off lacks it."""
        self._watch_for_the_end()
        self._keep_calls_apart()
        self._take_usage_as_sum()

    def _watch_for_the_end(self) -> None:
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

    def _keep_calls_apart(self) -> None:
        """Let parallel calls that a server gives one index, each with an id and a name, be several calls."""
        manager: Any = self.response._parts_manager  # noqa: SLF001
        handle, indexes = manager.handle_tool_call_delta, _CallIndexes()

        def handled(*, vendor_part_id: Hashable, tool_name: str | None = None, **more: Any) -> Any:
            index = indexes.index_of(vendor_part_id, more.get("tool_call_id"), begins=bool(tool_name))
            return handle(vendor_part_id=index, tool_name=tool_name, **more)

        manager.handle_tool_call_delta = handled

    def _take_usage_as_sum(self) -> None:
        """Take each usage that the stream tells for all that was used so far.

        Chat Completions tell it at the end, and some servers in every chunk, unasked: pydantic-ai would add these up.
        Its own setting against that makes it ask for them, which other servers refuse, so it is set once the request is
        sent.
        """
        if hasattr(self.response, "_model_settings"):
            settings = self.response._model_settings or {}  # noqa: SLF001
            self.response._model_settings = {**settings, "openai_continuous_usage_stats": True}  # noqa: SLF001


class _CallIndexes:
    """Finds out which call a fragment belongs to, where a provider's index does not say it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[str, Hashable]] = {}
        """By the provider's index: the ids of its calls, each with an index of its own."""
        self._latest: dict[Hashable, Hashable] = {}

    def index_of(self, index: Hashable, call_id: str | None, *, begins: bool) -> Hashable:
        """Return an index that no other call has. An id alone begins no call: some servers change it on the way."""
        if index is None:
            return None
        known = self._known.setdefault(index, {})
        if call_id and call_id not in known and (begins or not known):
            known[call_id] = (index, call_id) if known else index
            self._latest[index] = known[call_id]
        return known.get(call_id or "", self._latest.get(index, index))
