"""Reads the turn of one message: its events until the turn ends for good, or the chat rests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final, TypeGuard

from turnwise.engine.agents.answer_format import AnswerFormat
from turnwise.engine.config.results import MessageState, SendReceipt, TurnResult, chat_of
from turnwise.engine.tools.arguments import BadArguments
from turnwise.providers.reply_outcome import ReplyOutcome, outcome_of
from turnwise.states.errors import ChatUnreadable, StoreError
from turnwise.states.events import Event, HistoryResetEvent, MessageEvent, QueueEvent, StatusEvent, TurnFinishedEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import CallStatus, ChatState, Executor, StopReason
from turnwise.states.transcript import Transcript
from turnwise.states.usage import NO_USAGE

FormOf = Callable[[str], AnswerFormat | None]
"""Returns the form in which the agent of that name gives answers; `None` for text."""


_STOPPED_BEHIND: Final = (StopReason.interrupted, StopReason.error)
"""Stop reasons of turns with an answer before their end: a later compaction was stopped, or failed."""
AT_WORK: Final = (ChatState.streaming, ChatState.executing_tools)
"""States of an open turn. A chat may also compact between turns."""


@contextmanager
def after_receipt(receipt: SendReceipt) -> Iterator[None]:
    """Correct store errors after the receipt of a message: the message is stored."""
    try:
        yield
    except ChatUnreadable:
        raise
    except StoreError as error:
        why = error.problem.removesuffix("; nothing was written")
        problem = f"message {receipt.message_id!r} is stored, but its turn could not be followed: {why}"
        raise StoreError(problem, written="unknown", passing=error.passing) from error


class TurnReader:
    """Reads the turn that answers one message from the chat's events after `receipt.seq`."""

    def __init__(self, following: AsyncGenerator[Event, None], receipt: SendReceipt) -> None:
        self._following = following
        self._receipt = receipt
        self.turn: int | None = None
        """The number of the turn, once it has started."""
        self.message_state: MessageState = "queued"
        self.finished: TurnFinishedEvent | None = None
        """The event that ended the turn; `None` before, and while the turn goes on again."""

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the turn's events until it ends, the chat rests, or the message is deleted or cut.

        If the turn was resumed since the receipt, its last end counts. The stream may end before the turn has started,
        if the chat rests while the message is queued, or the message is deleted.
        """
        behind_end, is_new = list[Event](), True
        async with aclosing(self._following) as events:
            async for event in events:
                if isinstance(event, HistoryResetEvent) and event.begins_anew:
                    self.turn, self.finished, self.message_state, is_new = None, None, "queued", False
                    behind_end.clear()
                    yield event
                    continue
                if self.turn is None:
                    self._await_turn(event)
                # A message of an earlier turn comes again after an erasure.
                if self.turn is not None and not (isinstance(event, MessageEvent) and event.message.turn < self.turn):
                    behind_end.append(event)
                    if self.finished is None or self._is_resumed_by(event):
                        for one in behind_end:
                            yield one
                        behind_end.clear()
                if self._is_ended_by(event):
                    return
        if self.turn is None and not is_new:
            self.message_state = "removed"  # the database took it back

    def _await_turn(self, event: Event) -> None:
        message_id = self._receipt.message_id
        match event:
            case MessageEvent() if event.message.id == message_id:
                self.turn, self.message_state = event.message.turn, "taken"
            case QueueEvent(change="deleted") if message_id in event.ids:
                self.message_state = "removed"
            case QueueEvent(change="kept") if message_id not in event.ids:
                self.message_state = "removed"

    def _is_resumed_by(self, event: Event) -> bool:
        """Whether an event shows that the turn went on after its end."""
        works = isinstance(event, StatusEvent) and event.state in AT_WORK
        if works or self._is_end(event):
            self.finished = None
        return self.finished is None

    def _is_end(self, event: Event) -> TypeGuard[TurnFinishedEvent]:
        return isinstance(event, TurnFinishedEvent) and event.turn == self.turn

    def _is_ended_by(self, event: Event) -> bool:
        if self.finished is not None:  # the next turn begins with its message, before any work
            is_next = isinstance(event, MessageEvent) and event.message.turn > self.finished.turn
            return is_next or isinstance(event, HistoryResetEvent)
        if self.turn is not None and isinstance(event, HistoryResetEvent):
            self.message_state = "removed"  # an edit cuts at least the newest turn
        if self._is_end(event):
            self.finished = event
            return event.seq > self._receipt.chat.last_seq
        return self.message_state == "removed"


def turn_result(reader: TurnReader, transcript: Transcript, facts: Facts, form_of: FormOf) -> TurnResult[Any]:
    """Return the result of a message's turn, from the turn's transcript and the chat's facts after it."""
    answers = [message.text for message in transcript.messages if message.role == "assistant" and message.text]
    so_far = facts.turn.usage if facts.turn.number == reader.turn else NO_USAGE
    stop_reason = reader.finished.stop_reason if reader.finished is not None else None
    return TurnResult(
        chat=chat_of(facts),
        text=answers[-1] if answers else "",
        stop_reason=stop_reason,
        usage=reader.finished.usage if reader.finished is not None else so_far,
        messages=transcript.messages,
        output=answer_in(transcript.messages, form_of, facts.profile.agent, stop_reason),
        open_calls=[call.shown for call in transcript.open_calls],
        message_state=reader.message_state,
    )


def answer_in(messages: Sequence[Message], form_of: FormOf, agent: str, stop_reason: StopReason | None) -> Any:
    """Return the last accepted answer of a turn, by the form of its agent; `None` without one that fits.

    It may be text or a tool call, even if this engine's agent does otherwise: another worker may have run another
    version. A text was accepted if it is the last reply of an agent with a form, and complete.

    Args:
        messages: of the turn.
        form_of: the forms of agents, by name.
        agent: the chat's agent, for replies without one.
        stop_reason: of the turn; `None` while it runs.
    """
    results = [message.result for message in messages if message.result is not None]
    accepted = {result.call_id for result in results if result.outcome is CallStatus.succeeded}
    replies = [message for message in reversed(messages) if message.role == "assistant"]
    forms = [(reply, form) for reply in replies if (form := form_of(reply.agent or agent)) is not None]
    for place, (reply, form) in enumerate(forms):
        if reply.erased:
            return None
        if place == 0 and _may_answer(reply, stop_reason):
            with suppress(BadArguments):
                return form.read(form.arguments_in(reply.text))
        for call in reply.calls:
            if call.name == form.tool.name and call.call_id in accepted:
                with suppress(BadArguments):
                    return form.read(call.arguments)
                return None
    return None


def _may_answer(reply: Message, stop_reason: StopReason | None) -> bool:
    """Whether the text of a turn's last reply may be its answer."""
    word = reply.finish_reason if stop_reason in _STOPPED_BEHIND else stop_reason
    asks = any(call.executor is not Executor.provider for call in reply.calls)
    return outcome_of(word) is ReplyOutcome.complete and not reply.partial and not asks
