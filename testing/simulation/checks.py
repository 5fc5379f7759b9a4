"""What must hold of every chat, whatever happened: the invariants of the machine, read off a real store."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from turnwise.engine.views import user_view
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.verification import verify_records
from turnwise.states.invariants import broken_promises
from turnwise.states.messages import Message
from turnwise.states.transcript import fold
from turnwise.states.usage import NO_USAGE

EVENTS = 1_000_000


async def problems_of(store: ChatStore, chat_id: str) -> list[str]:
    """Return every invariant that a chat breaks, in words; nothing for a sound chat."""
    facts = await store.facts(chat_id)
    history = await store.history(chat_id)
    found = [f"the promise {promise} is broken in {facts.state}" for promise in broken_promises(facts)]
    found += [problem async for problem in _of_the_log(store, chat_id, facts.version)]
    found += [problem async for problem in _of_the_events(store, chat_id, history)]
    found += _of_the_calls(history, {call.call_id for call in facts.open_calls})
    spent = sum((entry.usage for entry in await store.ledger(chat_id)), NO_USAGE)
    if spent != facts.usage:
        found.append(f"the chat's usage is {facts.usage}, but its model calls add up to {spent}")
    return [f"{chat_id}: {problem}" for problem in found]


async def _of_the_log(store: ChatStore, chat_id: str, version: int) -> AsyncIterator[str]:
    records = await store.audit(chat_id)
    if len(records) != version:
        yield f"the chat stands at version {version}, but its log has {len(records)} records"
    verdict = verify_records(records)
    if not verdict.ok:
        yield f"the audit log does not verify: {verdict.problem}"


async def _of_the_events(store: ChatStore, chat_id: str, history: list[Message]) -> AsyncIterator[str]:
    events = await store.events(chat_id, after=0, limit=EVENTS)
    numbers = [event.seq for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its events are numbered {numbers}"
    transcript = fold(events)
    if transcript.messages != user_view(history):
        told, kept = ([message.id for message in seen] for seen in (transcript.messages, user_view(history)))
        yield f"its events tell the messages {told}, but its history has {kept}"


def _of_the_calls(history: list[Message], still_open: set[str]) -> list[str]:
    asked = Counter(call.call_id for message in history for call in message.calls if call.executor != "provider")
    answered = Counter(message.result.call_id for message in history if message.result is not None)
    found = [f"call {call_id!r} stands {count} times in the history" for call_id, count in asked.items() if count > 1]
    found += [f"call {call_id!r} has {answered[call_id]} results" for call_id in answered if answered[call_id] != 1]
    found += [f"a result of {call_id!r} answers no call" for call_id in answered if call_id not in asked]
    silent = [call_id for call_id in asked if call_id not in answered and call_id not in still_open]
    return found + [f"call {call_id!r} has neither a result nor a place among the open calls" for call_id in silent]
