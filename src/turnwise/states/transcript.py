"""The reference reader: folds a chat's events into what a person sees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, fields
from typing import Final

from pydantic.dataclasses import dataclass

from turnwise.states import events as e
from turnwise.states.calls import ToolCall
from turnwise.states.errors import InvalidArgument
from turnwise.states.message_order import in_transcript_order
from turnwise.states.messages import Message, QueuedMessage
from turnwise.states.names import ChatState, StopReason
from turnwise.states.values.checked import checked
from turnwise.states.values.plain import shown


@dataclass(slots=True, config={"defer_build": True})
class LivePart:
    """A part of the reply under way: its type and the join of its deltas."""

    type: str
    """The type of the part."""
    text: str = ""
    """What has come so far."""


@dataclass(slots=True, config={"defer_build": True})
class Transcript:
    """What a reader sees of a chat, made from its events."""

    state: ChatState | None = None
    """The chat's state."""
    messages: list[Message] = field(default_factory=list)
    """Finished messages, in order; results in the order of their calls."""
    live: dict[int, LivePart] = field(default_factory=dict)
    """The parts of the reply under way, by index. Empty as soon as the reply is a message."""
    live_step: int | None = None
    """The step of the reply under way."""
    live_attempt: int | None = None
    """The attempt of the reply under way."""
    queue: tuple[QueuedMessage, ...] = ()
    """The messages that wait in the queue."""
    open_calls: tuple[ToolCall, ...] = ()
    """The calls that the client has to answer."""
    stop_reason: StopReason | None = None
    """Why the last finished turn ended."""
    error: e.ErrorInfo | None = None
    """Why the last turn failed."""
    last_seq: int = 0
    """The number of the last event in it."""

    @property
    def seq(self) -> int:
        """The number of the last event in it: `events(after=transcript.seq)` goes on from here."""
        return self.last_seq

    @property
    def live_text(self) -> str:
        """The text of the reply under way."""
        return "".join(self.live[index].text for index in sorted(self.live) if self.live[index].type == "text")


_EVENTS: Final = tuple(e.EVENTS.values())


@checked
def fold(events: Iterable[e.Event], transcript: Transcript | None = None) -> Transcript:
    """Return the transcript that `events` make, continuing from `transcript` if one is given.

    Folding events in two parts gives the same result as folding them at once, so a reader may reconnect.
    """
    transcript = transcript if transcript is not None else Transcript()
    for event in events:
        if not isinstance(event, _EVENTS):
            raise InvalidArgument("events", f"must be events; one was {shown(event)}")
        if isinstance(event, e.HistoryResetEvent) and event.begins_anew:
            _begin_anew(transcript)
        elif event.seq > transcript.last_seq:
            _fold_one(transcript, event)
            transcript.last_seq = event.seq
    transcript.messages = in_transcript_order(transcript.messages)
    return transcript


def _begin_anew(transcript: Transcript) -> None:
    blank = Transcript()
    for one in fields(Transcript):
        setattr(transcript, one.name, getattr(blank, one.name))


def _fold_one(transcript: Transcript, event: e.Event) -> None:  # noqa: C901, PLR0912 - one case per kind of event
    match event:
        case e.StatusEvent():
            transcript.state = event.state
            if event.state is not ChatState.requires_action:
                transcript.open_calls = ()
            if event.state is not ChatState.error:
                transcript.error = None
        case e.MessageEvent():
            _put(transcript, event.message)
        case e.PartEvent():
            _extend(transcript, event)
        case e.AttemptDiscardedEvent():
            if (transcript.live_step, transcript.live_attempt) == (event.step, event.attempt):
                _drop_live(transcript)
        case e.HistoryResetEvent():
            _drop_live(transcript)
            ids = [message.id for message in transcript.messages]
            if event.first_removed in ids:
                del transcript.messages[ids.index(event.first_removed) :]
        case e.QueueEvent():
            transcript.queue = event.changed(transcript.queue)
        case e.ActionRequiredEvent():
            transcript.open_calls = event.calls
        case e.ToolResultEvent():
            transcript.open_calls = tuple(call for call in transcript.open_calls if call.call_id != event.call_id)
        case e.TurnFinishedEvent():
            _drop_live(transcript)
            transcript.stop_reason = event.stop_reason
        case e.ErrorEvent():
            transcript.error = event.error


def _put(transcript: Transcript, message: Message) -> None:
    for place, present in enumerate(transcript.messages):
        if present.id == message.id:
            transcript.messages[place] = message
            return
    transcript.messages.append(message)
    if message.role == "assistant" and message.step == transcript.live_step:
        _drop_live(transcript)


def _extend(transcript: Transcript, event: e.PartEvent) -> None:
    if (transcript.live_step, transcript.live_attempt) != (event.step, event.attempt):
        _drop_live(transcript)
        transcript.live_step, transcript.live_attempt = event.step, event.attempt
    part = transcript.live.setdefault(event.index, LivePart(event.part.type))
    if event.part.delta is not None:
        part.text += event.part.delta


def _drop_live(transcript: Transcript) -> None:
    transcript.live.clear()
    transcript.live_step = transcript.live_attempt = None
