"""AG-UI 1.0: an encoder of one turn's events as the events of a run.

Source: the generated models of `ag-ui-protocol`, and the rules of order that `verifyEvents` of `@ag-ui/client` checks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

from pydantic import SkipValidation

from turnwise.service.protocols import pieces as p
from turnwise.service.protocols.ai_sdk import Text
from turnwise.service.protocols.piece_reader import PieceReader
from turnwise.service.protocols.stored_messages import (
    agui_content,
    agui_media,
    agui_reasoning_id,
    agui_reply,
    agui_reply_id,
    agui_tool_result,
    reasoning_texts,
)
from turnwise.states.calls import ToolCall
from turnwise.states.errors import InvalidArgument
from turnwise.states.events import Event, TurnFinishedEvent
from turnwise.states.messages import FilePart, Message, SourcePart
from turnwise.states.names import ChatState, StopReason
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.values.checked import checked
from turnwise.states.values.plain import shown

_ANSWER: Final = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "arguments": {"type": "object", "description": "Run the call with these arguments instead."},
        "reason": {"type": "string"},
    },
    "required": ["approved"],
}
_PROTOCOL: Final = "1.0"
_STOPPED: Final = frozenset(
    {
        StopReason.interrupted,
        StopReason.max_steps,
        StopReason.token_budget,
        StopReason.time_budget,
        StopReason.cost_budget,
    }
)
"""Why a run may have stopped that neither came to its end nor failed."""


@checked
class AGUIEncoder:
    """Encodes the events of one turn, from any of them on, as the events of one run.

    A `MESSAGES_SNAPSHOT` corrects a client whose messages differ from the stored ones, because an attempt was discarded
    or a call repaired. It holds all messages, so it needs those from before the run. Clients keep reasoning that a
    snapshot without any leaves out: removed reasoning is empty there.

    Args:
        thread_id: the client's name of the chat.
        run_id: the client's name of the run.
        history: the messages that the client has; `None` for an encoder that corrects nothing.
        known_calls: ids of calls that the client has in its messages.
        answered: ids of calls whose results it has there, too.
        for_owner: whether the client is an owner: calls that only an operator may answer become a `CUSTOM` event
            `awaiting_operator`, and are no interrupts.
    """

    def __init__(
        self,
        thread_id: Text,
        run_id: Text,
        *,
        history: Annotated[Sequence[dict[str, Any]] | None, SkipValidation] = None,
        known_calls: Collection[Text] = (),
        answered: Collection[Text] = (),
        for_owner: bool = False,
    ) -> None:
        self._for_owner = for_owner
        self._run = {"threadId": thread_id, "runId": run_id}
        self._messages = None if history is None else _check_history(history)
        self._reader = PieceReader(known_calls, answered, can_reset=history is not None, keeps_calls=history is None)
        self._results: list[dict[str, Any]] = []
        """The provider's results in the reply under way: they stand behind its message."""
        self._text = ""
        """What was shown of the reply under way."""
        self._reasoning: dict[int, str] = {}
        """What was shown of its reasoning, by index."""
        self._removed_reasoning: list[str] = []
        """Ids of reasoning that was shown and is not stored, as far as is known."""
        self._spent: dict[int, Usage] = {}
        """What the turns that are over have used in this run, by number: one that is resumed ends once more."""
        self._used = NO_USAGE
        """What the replies of the turn under way have used in it."""
        self._differs = False
        """Whether the client's messages differ from the stored ones."""

    @property
    def over(self) -> bool:
        """Whether the turn has ended."""
        return self._reader.finished is not None

    def begin(self, *, anew: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the events that begin the run.

        Args:
            anew: first bring the client's messages back to the user's last one: the turn is shown from its start.
        """
        yield {"type": "RUN_STARTED", **self._run, "protocolVersion": _PROTOCOL}
        if anew and self._messages is not None:
            users = [place for place, message in enumerate(self._messages, 1) if message["role"] == "user"]
            start = users[-1] if users else 0
            self._removed_reasoning += [one["id"] for one in self._messages[start:] if one["role"] == "reasoning"]
            del self._messages[start:]
            yield from self._correct()

    def encode(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the protocol's events that an event adds."""
        for piece in self._reader.read(event):
            yield from self._encode(piece)
        if event is self._reader.finished:
            self._settle(self._reader.finished)

    def end(self, *, cut: Text | None = None) -> Iterator[dict[str, Any]]:
        """Yield the events that end the run.

        Args:
            cut: why the run ends before the turn does, in words for the client; `None` if the chat rests.
        """
        for piece in self._reader.close(is_over=cut is None):
            yield from self._encode(piece)
        reader = self._reader
        reason = None if reader.finished is None else reader.finished.stop_reason
        if cut is not None:
            yield {"type": "RUN_ERROR", "message": cut, "code": "reconnect"}
        elif reader.error is not None or reason is StopReason.error:
            message, code = ("An error occurred.", "error")
            if reader.error is not None:
                message, code = reader.error.message, reader.error.kind
            yield {"type": "RUN_ERROR", "message": message, "code": code, **self._usage()}
        else:
            cancelled = reason in _STOPPED or (reason is None and reader.state is ChatState.interrupted)
            calls = () if cancelled else reader.awaited_calls
            operators = p.operators_calls(calls) if self._for_owner else ()
            if operators:
                value = [{"toolCallId": call.call_id, "toolName": call.name} for call in operators]
                yield {"type": "CUSTOM", "name": "awaiting_operator", "value": value}
            outcome = {"type": "cancelled"} if cancelled else _outcome([one for one in calls if one not in operators])
            yield {"type": "RUN_FINISHED", **self._run, "outcome": outcome, **self._usage()}

    def _settle(self, finished: TurnFinishedEvent) -> None:
        """Count what the run's own calls used in a turn: all of it if it began here, or else that of the replies."""
        spent = self._spent.get(finished.turn, NO_USAGE) + self._used
        self._spent[finished.turn] = finished.usage if finished.turn == self._reader.started_turn else spent
        self._used = NO_USAGE

    def _usage(self) -> dict[str, Any]:
        usage = sum(self._spent.values(), self._used)
        counts = {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}
        reported = {name: count for name, count in counts.items() if count is not None}
        return {"usage": [reported]} if reported else {}

    def _encode(self, piece: p.Piece) -> Iterator[dict[str, Any]]:  # noqa: C901, PLR0912 - one case per kind of piece
        match piece:
            case p.StepStarted():
                self._text = ""
                self._reasoning.clear()
            case p.TextStarted(kind="text"):
                yield {"type": "TEXT_MESSAGE_START", "messageId": self._reply_id(piece.step), "role": "assistant"}
            case p.TextAdded(kind="text"):
                self._text += piece.text
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._reply_id(piece.step), "delta": piece.text}
            case p.TextEnded(kind="text"):
                yield {"type": "TEXT_MESSAGE_END", "messageId": self._reply_id(piece.step)}
            case p.TextStarted():
                reasoning_id = self._reasoning_id(piece.step, piece.index)
                yield {"type": "REASONING_START", "messageId": reasoning_id}
                yield {"type": "REASONING_MESSAGE_START", "messageId": reasoning_id, "role": "reasoning"}
            case p.TextAdded():
                self._reasoning[piece.index] = self._reasoning.get(piece.index, "") + piece.text
                reasoning_id = self._reasoning_id(piece.step, piece.index)
                yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": reasoning_id, "delta": piece.text}
            case p.TextEnded():
                yield from self._end_reasoning(piece)
            case p.ToolCallStarted():
                started = {"type": "TOOL_CALL_START", "toolCallId": piece.call_id, "toolCallName": piece.name}
                yield started | {"parentMessageId": self._reply_id(piece.step)}
            case p.ArgumentsAdded():
                yield {"type": "TOOL_CALL_ARGS", "toolCallId": piece.call_id, "delta": piece.text}
            case p.CallCompleted():
                yield from self._complete_call(piece)
            case p.CallAborted():
                self._differs = True
                yield {"type": "TOOL_CALL_END", "toolCallId": piece.call_id}
            case p.CallRemoved():
                self._differs = True
            case p.WholePart():
                yield _custom(piece.part)
            case p.CallResult():
                yield from self._result(piece)
            case p.StepReset():
                yield from self._reset(piece)
            case p.StepEnded():
                yield from self._end_step(piece)

    def _reply_id(self, step: int) -> str:
        return agui_reply_id(self._reader.chat_id, step)

    def _reasoning_id(self, step: int, index: int) -> str:
        return agui_reasoning_id(self._reply_id(step), index)

    def _end_reasoning(self, ended: p.TextEnded) -> Iterator[dict[str, Any]]:
        reasoning_id = self._reasoning_id(ended.step, ended.index)
        yield {"type": "REASONING_MESSAGE_END", "messageId": reasoning_id}
        yield {"type": "REASONING_END", "messageId": reasoning_id}

    def _complete_call(self, completed: p.CallCompleted) -> Iterator[dict[str, Any]]:
        call = completed.call
        if not completed.arguments_text:
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call.call_id, "delta": arguments}
        else:
            self._differs |= _parse_arguments(completed.arguments_text) != call.arguments
        yield {"type": "TOOL_CALL_END", "toolCallId": call.call_id}

    def _result(self, piece: p.CallResult) -> Iterator[dict[str, Any]]:
        result = piece.result
        fields = {"messageId": piece.message_id, "toolCallId": result.call_id, "content": agui_content(result)}
        if self._messages is not None:
            message = agui_tool_result(piece.message_id, result)
            (self._results if piece.by_provider else self._messages).append(message)
        yield {"type": "TOOL_CALL_RESULT", **fields, "role": "tool"}

    def _reset(self, reset: p.StepReset) -> Iterator[dict[str, Any]]:
        for text in reset.open_texts:
            if text.kind == "text":
                yield {"type": "TEXT_MESSAGE_END", "messageId": self._reply_id(text.step)}
            else:
                yield from self._end_reasoning(text)
        for call in reset.open_calls:
            yield {"type": "TOOL_CALL_END", "toolCallId": call.call_id}
        self._results.clear()
        self._remove_reasoning(reset.step)
        yield from self._correct()

    def _remove_reasoning(self, step: int) -> None:
        self._removed_reasoning += [self._reasoning_id(step, index) for index in sorted(self._reasoning)]

    def _end_step(self, ended: p.StepEnded) -> Iterator[dict[str, Any]]:
        message = ended.message
        if message is not None and message.usage is not None:
            self._used += message.usage
        reasoning = [self._reasoning[index] for index in sorted(self._reasoning)]
        self._differs |= (self._text, reasoning) != (
            ("", []) if message is None else (message.text, reasoning_texts(message))
        )
        if self._messages is not None:
            self._remove_reasoning(ended.step)
            if message is not None:
                self._messages.extend([*self._reply_messages(ended.step, message), *self._results])
                self._results.clear()
        if self._differs:
            yield from self._correct()

    def _reply_messages(self, step: int, message: Message) -> Iterator[dict[str, Any]]:
        """Yield the messages of a reply. Its reasoning has the ids under which it was shown."""
        places = sorted(self._reasoning)
        for number, text in enumerate(reasoning_texts(message)):
            place = places[number] if number < len(places) else len(message.parts) + number
            yield {"id": self._reasoning_id(step, place), "role": "reasoning", "content": text}
        yield agui_reply(self._reply_id(step), message)

    def _correct(self) -> Iterator[dict[str, Any]]:
        """Yield a snapshot of the messages, if the encoder knows all of them."""
        self._differs = False
        if self._messages is not None:
            has_reasoning = any(message["role"] == "reasoning" for message in self._messages)
            removed = () if has_reasoning else dict.fromkeys(self._removed_reasoning)
            empty = [{"id": reasoning_id, "role": "reasoning", "content": ""} for reasoning_id in removed]
            yield {"type": "MESSAGES_SNAPSHOT", "messages": [*self._messages, *empty]}


@checked
def encode_agui(events: Iterable[Event], *, thread_id: Text, run_id: Text) -> Iterator[dict[str, Any]]:
    """Yield the events of a whole run for the events of one turn, from any of them on."""
    encoder = AGUIEncoder(thread_id, run_id)
    yield from encoder.begin()
    for event in events:
        yield from encoder.encode(event)
    yield from encoder.end()


def _check_history(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copy the list of messages. Checks only the fields that are read: messages may be megabytes."""
    if not isinstance(history, list | tuple):
        raise InvalidArgument("history", f"must be a list of messages; it was {shown(history)}")
    for place, message in enumerate(history):
        if not (isinstance(message, dict) and {"id", "role"} <= message.keys()):
            raise InvalidArgument(f"history[{place}]", f"must be a message of AG-UI; it was {shown(message)}")
    return list(history)


def _outcome(calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return the outcome of a successful run: calls to approve are interrupts, calls of client tools are pending."""
    to_approve = [call for call in calls if call.approval == "asked"]
    if to_approve:
        return {"type": "interrupt", "interrupts": [_interrupt(call) for call in to_approve]}
    pending = [call.call_id for call in calls]
    return {"type": "success"} | ({"pendingToolCallIds": pending} if pending else {})


def _interrupt(call: ToolCall) -> dict[str, Any]:
    expires = {} if call.deadline is None else {"expiresAt": call.deadline.isoformat()}
    return {
        "id": call.call_id,
        "reason": "tool_call",
        "message": f"Allow {call.name}?",
        "toolCallId": call.call_id,
        "responseSchema": _ANSWER,
        **expires,
    }


def _custom(part: FilePart | SourcePart) -> dict[str, Any]:
    """Return an event for a part that the protocol's assistant messages cannot hold."""
    if isinstance(part, SourcePart):
        value = {"id": part.id, "type": part.source_type, "url": part.url, "title": part.title}
        return {"type": "CUSTOM", "name": "source", "value": value}
    return {"type": "CUSTOM", "name": "file", "value": agui_media(part)}


def _parse_arguments(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
