"""The promises of the machine, checked on every chat of a real store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from turnwise.engine.prompt.views import user_view
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.protocol import ChatStore
from turnwise.states import triggers as t
from turnwise.states.events import AttemptDiscardedEvent, Event, MessageEvent, PartEvent, StatusEvent, TurnFinishedEvent
from turnwise.states.facts import Facts
from turnwise.states.invariants import broken_invariants
from turnwise.states.messages import Message
from turnwise.states.names import ChatState
from turnwise.states.transcript import fold
from turnwise.states.usage import NO_USAGE
from turnwise.states.writes import RecordUsage

EVENTS = 1_000_000


class StoredRows(msgspec.Struct, frozen=True):
    """All that a store holds of a chat."""

    facts: Facts
    history: list[Message]
    events: list[Event]
    records: list[AuditRecord]
    ledger: list[RecordUsage]

    @property
    def erased(self) -> bool:
        return any(record.trigger == t.MessageErased.name for record in self.records)


async def stored_of(store: ChatStore, chat_id: str) -> StoredRows:
    return StoredRows(
        await store.facts(chat_id),
        await store.history(chat_id),
        await store.events(chat_id, after=0, limit=EVENTS),
        await store.audit(chat_id),
        await store.ledger(chat_id),
    )


async def problems_of(store: ChatStore, chat_id: str, *, pruned: bool = False) -> list[str]:
    """Return every promise that a chat breaks, in words; nothing for a sound chat.

    Events may be missing where parts may have been `pruned`, or a message erased.
    """
    return problems_in(await stored_of(store, chat_id), pruned=pruned)


def problems_in(chat: StoredRows, *, pruned: bool) -> list[str]:
    """Return every promise that a chat breaks by what is stored of it."""
    facts, history, events, records = chat.facts, chat.history, chat.events, chat.records
    problems = [f"the promise {promise} is broken in {facts.state}" for promise in broken_invariants(facts)]
    problems += _of_the_log(records, facts)
    problems += _of_the_events(events, history, gaps=pruned or chat.erased)
    problems += problems_of_parts(events, gaps=pruned)
    problems += _of_the_calls(history, {call.call_id for call in facts.open_calls})
    problems += _of_the_usage(chat.ledger, records, facts)
    return [f"{facts.chat_id}: {problem}" for problem in problems]


def _of_the_log(records: list[AuditRecord], facts: Facts) -> Iterator[str]:
    if len(records) != facts.version:
        yield f"the chat stands at version {facts.version}, but its log has {len(records)} records"
    verdict = verify_records(records)
    if not verdict.ok:
        yield f"the audit log does not verify: {verdict.problem}"


def _of_the_events(events: list[Event], history: list[Message], *, gaps: bool) -> Iterator[str]:
    numbers = [event.seq for event in events]
    if numbers != (sorted(set(numbers)) if gaps else list(range(1, len(numbers) + 1))):
        yield f"its events are numbered {numbers}"
    transcript = fold(events)
    if transcript.messages != user_view(history):
        from_events, stored = ([message.id for message in seen] for seen in (transcript.messages, user_view(history)))
        yield f"its events have the messages {from_events}, but its history has {stored}"


def problems_of_parts(  # noqa: C901 - one case per kind of event
    events: Sequence[Event], *, gaps: bool
) -> Iterator[str]:
    """Yield where parts come in a state that shows none, or are neither stored nor taken back.

    All that was shown must be in the message; without `gaps` all of the message was shown, too.
    """
    state: ChatState | None = None
    attempt: tuple[int, int] | None = None
    words = ""
    for event in events:
        match event:
            case StatusEvent():
                state = event.state
            case PartEvent():
                if state is not ChatState.streaming:
                    yield f"event {event.seq} shows a part of step {event.step} while the chat is {state}"
                if attempt not in (None, (event.step, event.attempt)):
                    yield f"the parts of step and attempt {attempt} are neither stored nor taken back"
                    words = ""
                attempt = (event.step, event.attempt)
                words += (event.part.delta or "") if event.part.type == "text" else ""
            case MessageEvent(message=Message(role="assistant")) if attempt and event.message.step == attempt[0]:
                if not _keeps(event.message, words, gaps=gaps):
                    yield f"step {attempt[0]} was shown as {words!r}, but is stored as {event.message.text!r}"
                attempt, words = None, ""
            case TurnFinishedEvent() if words:
                yield f"step and attempt {attempt} were shown as {words!r}, but nothing of it is stored"
                attempt, words = None, ""
            case AttemptDiscardedEvent() | TurnFinishedEvent():
                attempt, words = None, ""
    if attempt is not None:
        yield f"the parts of step and attempt {attempt} are neither stored nor taken back"


def _keeps(message: Message, words: str, *, gaps: bool) -> bool:
    """Return whether a message says what was shown; with `gaps`, more may stand between."""
    rest = iter(message.text)
    is_same = all(letter in rest for letter in words) if gaps else words == message.text
    return is_same or message.erased


def _of_the_usage(ledger: list[RecordUsage], records: list[AuditRecord], facts: Facts) -> Iterator[str]:
    spent = sum((entry.usage for entry in ledger), NO_USAGE)
    if spent != facts.usage:
        yield f"the chat's usage is {facts.usage}, but its model calls add up to {spent}"
    attempts = len({(record.step, record.attempt) for record in records if record.attempt}) - facts.step.attempt_open
    entries = sum(entry.purpose != "title" for entry in ledger)
    if attempts != entries:
        yield f"{attempts} attempts have ended, but the ledger has {entries} entries"


def _of_the_calls(history: list[Message], still_open: set[str]) -> list[str]:
    asked = Counter(call.call_id for message in history for call in message.calls if call.executor != "provider")
    answered = Counter(message.result.call_id for message in history if message.result is not None)
    problems = [
        f"call {call_id!r} stands {count} times in the history" for call_id, count in asked.items() if count > 1
    ]
    problems += [f"call {call_id!r} has {answered[call_id]} results" for call_id in answered if answered[call_id] != 1]
    problems += [f"a result of {call_id!r} answers no call" for call_id in answered if call_id not in asked]
    silent = [call_id for call_id in asked if call_id not in answered and call_id not in still_open]
    return problems + [f"call {call_id!r} has neither a result nor a place among the open calls" for call_id in silent]
