"""Converts turnwise's messages to pydantic-ai's."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from typing import Any, Final

import msgspec
from pydantic_ai import messages as theirs

from turnwise.providers.pydantic_ai.anthropic import CacheTTL, is_resent
from turnwise.providers.pydantic_ai.files import NO_LIMITS, FileLimits, Takes, sendable_file
from turnwise.providers.pydantic_ai.provider_data import ProviderOrigin, is_compaction
from turnwise.providers.repair_history import PerMessage
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes as the name of a tool."""
_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""What every provider but Mistral takes as the id of a call."""
_MISTRALS: Final = re.compile(r"[A-Za-z0-9]{9}")
"""What Mistral takes."""


class RequestWriter(msgspec.Struct, eq=False, dict=True):
    """Writes requests for one provider."""

    origin: ProviderOrigin
    """Whose own data goes back with the parts."""
    takes_system: bool
    """Whether the provider takes system messages anywhere; else the user sends reminders."""
    needs_signature: bool
    """Whether reasoning without a signature is refused."""
    keeps_items: bool
    """Whether the ids of parts name items of the provider's own, which it knows only as a whole."""
    takes: Takes
    """Whether the provider takes files of a media type."""
    short_ids: bool = False
    """Whether the ids of calls have nine letters and digits, as Mistral wants them."""
    limits: FileLimits = NO_LIMITS
    """What it takes of their content."""

    @cached_property
    def replies(self) -> PerMessage[theirs.ModelResponse]:
        """The assistant's messages, as pydantic-ai sends them."""
        return PerMessage(self._convert_reply)

    @cached_property
    def prompts(self) -> PerMessage[theirs.ModelRequest]:
        """The other messages, as pydantic-ai sends them."""
        return PerMessage(self._convert_prompt)

    def history(self, messages: Sequence[Message], marks: CacheTTL | None = None) -> list[theirs.ModelMessage]:
        """Return the messages, neighbours of one side joined. Each is converted once, for as long as it lives.

        With `marks` the history is marked for the prompt cache, where the two newest prompts end that stay in it.
        """
        runs = [
            (replied, list(run)) for replied, run in groupby(messages, key=lambda message: message.role == "assistant")
        ]
        prompts = [place for place, (replied, run) in enumerate(runs) if not replied and any(map(is_resent, run))]
        marked = prompts[-2:] if marks is not None else []
        history: list[theirs.ModelMessage] = []
        for place, (replied, run) in enumerate(runs):
            if not replied:
                history.append(self._prompt(run, after=bool(history), mark=marks if place in marked else None))
            elif (reply := self._reply(run)).parts:
                history.append(reply)
        return history

    def _reply(self, run: Sequence[Message]) -> theirs.ModelResponse:
        if len(run) == 1:
            return self.replies(run[0])
        address = self.origin.address(part for message in run for part in message.parts)
        return theirs.ModelResponse([part for message in run for part in self.replies(message).parts], **address)

    def _prompt(self, run: Sequence[Message], *, after: bool, mark: CacheTTL | None) -> theirs.ModelRequest:
        if len(run) == 1 and run[0].role != "system" and mark is None:
            return self.prompts(run[0])
        end = max((place for place, message in enumerate(run) if is_resent(message)), default=-1)
        parts = list(self._user_parts(run[: end + 1], after=after))
        if mark is not None:
            parts.append(theirs.UserPromptPart([theirs.CachePoint(ttl=mark)]))
        return theirs.ModelRequest([*parts, *self._user_parts(run[end + 1 :], after=after or end >= 0)])

    def _user_parts(self, messages: Iterable[Message], *, after: bool) -> Iterable[theirs.ModelRequestPart]:
        for message in messages:
            if message.role != "system":
                after = True
                yield from self.prompts(message).parts
            elif self.takes_system or not after:
                yield theirs.SystemPromptPart(message.text)
            else:
                yield theirs.UserPromptPart(message.text)

    def _convert_reply(self, message: Message) -> theirs.ModelResponse:
        their_parts: list[theirs.ModelResponsePart] = []
        for part in message.parts:
            their_parts.extend(self._their_parts(part, self._own(part, partial=message.partial)))
        while their_parts and isinstance(their_parts[-1], theirs.ThinkingPart):
            their_parts.pop()  # reasoning that led to nothing, as a cut leaves it, is refused at the end of a reply
        return theirs.ModelResponse(their_parts, **self.origin.address(message.parts))

    def _own(self, part: Part, *, partial: bool) -> dict[str, Any]:
        """Return the provider's own data about a part; it has none of an item of a reply that was cut."""
        own = self.origin.data(part)
        return {} if partial and self.keeps_items and own.get("id") is not None else own

    def _their_parts(self, part: Part, own: dict[str, Any]) -> Iterable[theirs.ModelResponsePart]:
        match part:
            case TextPart():
                yield theirs.TextPart(part.text, **own)
            case ReasoningPart() if own and is_compaction(part):
                yield theirs.CompactionPart(part.text or None, **own)
            case ReasoningPart() if own and (part.signature is not None or not self.needs_signature):
                yield theirs.ThinkingPart(part.text, signature=part.signature, **own)
            case ToolCallPart(executor=Executor.provider):
                if own:
                    yield theirs.NativeToolCallPart(part.name, part.arguments, part.call_id, **own)
            case ToolCallPart():
                yield theirs.ToolCallPart(_wire_name(part.name), part.arguments, self._wire_id(part.call_id), **own)
            case ToolResultPart() if own:
                own.pop("id")
                yield theirs.NativeToolReturnPart(part.name, part.output, part.call_id, **own)
            case FilePart(data=str(data)) if own:
                yield theirs.FilePart(theirs.BinaryContent(b64decode(data), media_type=part.media_type), **own)

    def _convert_prompt(self, message: Message) -> theirs.ModelRequest:
        if message.result is not None:
            return theirs.ModelRequest([self._result(message.result)])
        if all(isinstance(part, TextPart) for part in message.parts):
            return theirs.ModelRequest([theirs.UserPromptPart(message.text)])
        contents = [
            part.text if isinstance(part, TextPart) else sendable_file(part, self.takes, self.limits)
            for part in message.parts
            if isinstance(part, TextPart | FilePart)
        ]
        return theirs.ModelRequest([theirs.UserPromptPart(contents)])

    def _result(self, result: ToolResultPart) -> theirs.ToolReturnPart:
        files = [sendable_file(file, self.takes, self.limits) for file in result.attachments]
        output = [] if result.output is None or result.output == "" else [result.output]  # an empty text is refused
        return theirs.ToolReturnPart(
            _wire_name(result.name),
            [*output, *files] if files else result.output,
            self._wire_id(result.call_id),
            outcome="failed" if result.is_error else "success",
        )

    def _wire_id(self, call_id: str) -> str:
        """Return an id that the provider takes, the same one for a call and its result: it may be another's."""
        if (_MISTRALS if self.short_ids else _CALL_ID).fullmatch(call_id):
            return call_id
        digest = sha256(call_id.encode()).hexdigest()
        return digest[:9] if self.short_ids else f"call_{digest[:24]}"


def _wire_name(name: str) -> str:
    """Return a name that any provider takes: a model may have called what no tool is named."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"
