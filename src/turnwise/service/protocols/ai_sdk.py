"""UI message streams of the AI SDK (npm package `ai`, versions 6 and 7): an encoder of one turn's events.

Source: `uiMessageChunkSchema` of the package, and the reader beside it, `processUIMessageStream`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import InstanceOf

from turnwise.service.protocols import pieces as p
from turnwise.service.protocols.piece_reader import PieceReader
from turnwise.states.actions.calls import DENIED_TEXT
from turnwise.states.events import Event
from turnwise.states.messages import FilePart, SourcePart
from turnwise.states.names import CallStatus, ChatState, Executor, StopReason
from turnwise.states.values.checked import checked

Version = Literal[6, 7]
Text = Annotated[str, InstanceOf]
"""What is sent to a client, and stored nowhere."""
FileAddress = Callable[[FilePart], str | None]
"""Returns where a client gets a file; `None` if it cannot."""

_REASONS: Final = {
    StopReason.end_turn: "stop",
    StopReason.stop_after_tool: "stop",
    StopReason.max_tokens: "length",
    StopReason.content_filter: "content-filter",
}
_CUT_SHORT: Final = "The call was not made: the reply was cut short."


def file_address(file: FilePart) -> str | None:
    """Return a file's address, or its inline data as one; `None` for a file that the chat's store keeps."""
    if file.url is not None:
        return file.url
    return None if file.data is None else f"data:{file.media_type};base64,{file.data}"


@checked
class AISDKEncoder:
    """Encodes the events of one turn, from any of them on, as chunks of a UI message stream.

    An attempt that is discarded is taken back with `reset-step` by version 7. Version 6 cannot take words back: its
    calls become errors, and a part `data-discarded` names the parts that a page should hide.

    Args:
        message_id: of the answer; made of the chat and the turn by default, so that a replay replaces what was there.
        version: the major version of the client's package.
        known_calls: ids of calls that the client has in its messages.
        answered: ids of calls whose results it has there, too.
        file_address: where clients get files. One that the chat's store holds and that has no address becomes a part
            `data-file`; any other without one is left out.
        for_owner: whether the page is an owner's: of a call that only an operator may answer it gets a part
            `data-awaiting-operator`, and no request.
    """

    def __init__(
        self,
        message_id: Text | None = None,
        *,
        version: Version = 6,
        known_calls: Collection[Text] = (),
        answered: Collection[Text] = (),
        file_address: FileAddress = file_address,
        for_owner: bool = False,
    ) -> None:
        self._message_id = message_id
        self._for_owner = for_owner
        self._version = version
        self._reader = PieceReader(known_calls, answered, can_reset=version >= 7)  # noqa: PLR2004 - `reset-step`
        self._address = file_address
        self._started = False
        self._step_open = False
        self._asked: set[str] = set()

    @property
    def over(self) -> bool:
        """Whether the turn has ended."""
        return self._reader.finished is not None

    def encode(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the chunks that an event adds."""
        encoded = [chunk for piece in self._reader.read(event) for chunk in self._encode(piece)]
        if encoded or self._reader.turn is not None:
            yield from self._start()
        yield from encoded

    def end(self, *, cut: Text | None = None) -> Iterator[dict[str, Any]]:
        """Yield the chunks that end the stream.

        Args:
            cut: why the stream ends before the turn does, in words for the client; `None` if the chat rests.
        """
        yield from self._start()
        for piece in self._reader.close(is_over=cut is None):
            yield from self._encode(piece)
        yield from self._finish_step()
        reader = self._reader
        reason = None if reader.finished is None else reader.finished.stop_reason
        if cut is not None:
            yield {"type": "error", "errorText": cut}
        elif reader.error is not None or reason is StopReason.error:
            yield {"type": "error", "errorText": "An error occurred." if reader.error is None else reader.error.message}
        elif reason is StopReason.interrupted or (reason is None and reader.state is ChatState.interrupted):
            yield {"type": "abort", "reason": "interrupted"}
        elif reader.awaited_calls:
            yield {"type": "finish", "finishReason": "tool-calls"}
        else:
            yield {"type": "finish", "finishReason": "stop" if reason is None else _REASONS.get(reason, "other")}

    def _start(self) -> Iterator[dict[str, Any]]:
        if self._started:
            return
        self._started = True
        reader = self._reader
        if self._message_id is None and reader.turn is not None:
            self._message_id = ai_sdk_message_id(reader.chat_id, reader.turn, behind=reader.steered_by)
        yield {"type": "start"} if self._message_id is None else {"type": "start", "messageId": self._message_id}

    def _finish_step(self) -> Iterator[dict[str, Any]]:
        if self._step_open:
            self._step_open = False
            yield {"type": "finish-step"}

    def _encode(self, piece: p.Piece) -> Iterator[dict[str, Any]]:  # noqa: C901, PLR0912 - one case per kind of piece
        match piece:
            case p.StepStarted():
                if not self._step_open:  # one that was reset is still open
                    self._step_open = True
                    yield {"type": "start-step"}
            case p.TextStarted():
                yield {"type": f"{piece.kind}-start", "id": _id_of(piece)}
            case p.TextAdded():
                yield {"type": f"{piece.kind}-delta", "id": _id_of(piece), "delta": piece.text}
            case p.TextEnded():
                yield {"type": f"{piece.kind}-end", "id": _id_of(piece)}
            case p.ToolCallStarted():
                started = {"type": "tool-input-start", "toolCallId": piece.call_id, "toolName": piece.name}
                yield started | _by_provider(by_provider=piece.executor is Executor.provider)
            case p.ArgumentsAdded():
                yield {"type": "tool-input-delta", "toolCallId": piece.call_id, "inputTextDelta": piece.text}
            case p.CallCompleted():
                call = piece.call
                available = {"type": "tool-input-available", "toolCallId": call.call_id, "toolName": call.name}
                mark = _by_provider(by_provider=call.executor is Executor.provider)
                yield available | {"input": call.arguments} | mark
            case p.CallAborted():
                yield _abort_call(piece)
            case p.CallRemoved():
                yield _remove_part(piece.call_id)
            case p.WholePart():
                yield from self._whole(piece.part, f"{piece.step}-{piece.index}")
            case p.CallResult():
                yield _result(piece) | _by_provider(by_provider=piece.by_provider)
                for file in piece.result.attachments:
                    yield from self._whole(file, "")
            case p.StepReset():
                yield from self._reset(piece)
            case p.StepEnded():
                yield from self._finish_step()
            case p.ActionRequired():
                yield from self._ask(piece)

    def _whole(self, part: FilePart | SourcePart, source_id: str) -> Iterator[dict[str, Any]]:
        if isinstance(part, SourcePart):
            named = {"sourceId": part.id or source_id}
            if part.source_type == "document":
                title = part.title or part.id or "document"
                yield {"type": "source-document", **named, "mediaType": "application/octet-stream", "title": title}
                return
            titled = {} if part.title is None else {"title": part.title}
            yield {"type": "source-url", **named, "url": part.url} | titled
            return
        address = self._address(part)
        if address is not None:
            yield {"type": "file", "url": address, "mediaType": part.media_type}
        elif part.blob is not None:
            yield {"type": "data-file", "data": stored_file(part)}

    def _reset(self, reset: p.StepReset) -> Iterator[dict[str, Any]]:
        if self._version >= 7:  # noqa: PLR2004 - the version that came with it
            yield {"type": "reset-step"}
            return
        for text in reset.open_texts:
            yield {"type": f"{text.kind}-end", "id": _id_of(text)}
        for call in reset.open_calls:
            yield _abort_call(call)
        for call_id in reset.complete_calls:
            yield _remove_part(call_id)
        data = {"step": reset.step, "attempt": reset.attempt, "reason": reset.reason}
        yield {"type": "data-discarded", "id": f"discarded-{reset.step}-{reset.attempt}", "data": data}
        yield from self._finish_step()

    def _ask(self, piece: p.ActionRequired) -> Iterator[dict[str, Any]]:
        operators = p.operators_calls(piece.calls) if self._for_owner else ()
        for call in piece.calls:
            if call.call_id in self._asked:
                continue
            if call in operators:
                data = {"toolCallId": call.call_id, "toolName": call.name}
                yield {"type": "data-awaiting-operator", "id": f"operator-{call.call_id}", "data": data}
            elif call.approval == "asked":
                yield {"type": "tool-approval-request", "approvalId": call.call_id, "toolCallId": call.call_id}
            self._asked.add(call.call_id)


@checked
def encode_ai_sdk(events: Iterable[Event], *, version: Version = 6) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a whole UI message stream for the events of one turn, from any of them on."""
    encoder = AISDKEncoder(version=version)
    for event in events:
        yield from encoder.encode(event)
    yield from encoder.end()


def ai_sdk_message_id(chat_id: str, turn: int, *, behind: str | None = None) -> str:
    """Return the id of the UI message that answers a turn, or that goes on `behind` a message that has steered it."""
    return f"{chat_id}-t{turn}" if behind is None else f"{chat_id}-t{turn}-{behind}"


def as_text(output: object) -> str:
    """Return a tool's output as text: itself, or its JSON."""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def _id_of(text: p.TextStarted | p.TextAdded | p.TextEnded) -> str:
    return f"{text.kind}-{text.step}-{text.index}"


def _by_provider(*, by_provider: bool) -> dict[str, Any]:
    return {"providerExecuted": True} if by_provider else {}


def stored_file(file: FilePart) -> dict[str, Any]:
    """Return the data of the part `data-file`, which names a file of the chat's store."""
    fields = {"digest": file.blob, "mediaType": file.media_type, "name": file.name, "size": file.size}
    return {name: value for name, value in fields.items() if value is not None}


def _abort_call(call: p.CallAborted) -> dict[str, Any]:
    named = {"toolCallId": call.call_id, "toolName": call.name}
    return {"type": "tool-input-error", **named, "input": None, "errorText": _CUT_SHORT}


def _remove_part(call_id: str) -> dict[str, Any]:
    return {"type": "tool-output-error", "toolCallId": call_id, "errorText": _CUT_SHORT}


def _result(piece: p.CallResult) -> dict[str, Any]:
    result = piece.result
    fields = {"toolCallId": result.call_id}
    text = as_text(result.output)
    if result.outcome is CallStatus.cancelled and text.startswith(DENIED_TEXT):
        return {"type": "tool-output-denied", **fields}
    if p.has_failed(result):
        return {"type": "tool-output-error", **fields, "errorText": text}
    return {"type": "tool-output-available", **fields, "output": result.output}
