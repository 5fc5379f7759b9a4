"""Checks after a crash in any scenario: the promises of turnwise, and that nothing was done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import cast

import msgspec

from turnwise.engine.engine import Engine
from turnwise.persistence.protocol import ChatStore
from turnwise.states.names import ChatState
from turnwise.states.triggers import NOT_DONE
from turnwise.testing.crash.life import EngineRun
from turnwise.testing.crash.store import MortalStore
from turnwise.testing.simulation.checks import problems_in, stored_of


class Ending(msgspec.Struct, frozen=True):
    """How a chat ended, as far as it has to be the same with and without a crash."""

    failed: bool
    messages: tuple[str, ...]
    """What was sent, in order."""


async def chat_ids_of(engine: Engine) -> list[str]:
    """Return all chats of an engine, the oldest first."""
    page = await engine.list_chats(limit=1000)
    return [chat.id for chat in reversed(page.items)]


async def endings_of(engine: Engine) -> list[Ending]:
    """Return how the chats of an engine have ended, the oldest first."""
    return [
        Ending(
            (await engine.get_chat(chat_id)).state is ChatState.error,
            tuple(message.text for message in await engine.messages(chat_id) if message.role == "user"),
        )
        for chat_id in await chat_ids_of(engine)
    ]


async def broken(
    engine: Engine, store: MortalStore, lives: Sequence[tuple[EngineRun, MortalStore]]
) -> AsyncIterator[str]:
    """Yield the promises of turnwise that the chats of an engine break after these lives."""
    started = Counter(call for life, _ in lives for call in life.started_tools)
    for chat_id in await chat_ids_of(engine):
        stored = await stored_of(cast("ChatStore", store), chat_id)
        for problem in problems_in(stored, pruned=False):
            yield problem
        verdict = await engine.verify(chat_id)
        if not verdict.ok:
            yield f"{chat_id}: its log and its rows do not verify: {verdict.problem}"
        recorded = {(record.version, str(record.trigger)) for record in stored.records}
        for of_chat, version, trigger in (one for _, store_of_life in lives for one in store_of_life.acknowledged):
            if of_chat == chat_id and (version, trigger) not in recorded:
                yield f"{chat_id}: {trigger} was acknowledged as version {version}, and is lost"
        undone = Counter(write.id for one in stored.records if one.reason == NOT_DONE for write in one.writes)
        calls = await store.calls(chat_id, [call_id for of_chat, call_id in started if of_chat == chat_id])
        for call in calls.values():
            times = started[chat_id, call.call_id]
            if call.crash == "at_most_once" and times > 1 + undone[call.call_id]:
                yield f"{chat_id}: the call {call.call_id} of {call.name}, at most once, began {times} times"


def differences(found: Sequence[Ending], wanted: Sequence[Ending], errors: Sequence[str]) -> Iterator[str]:
    """Yield how chats have ended otherwise than without a crash."""
    if len(found) != len(wanted):
        yield (
            f"there are {len(found)} chats, and {len(wanted)} without a crash: a scenario is lived again after a crash;"
            " create each chat under a client_id"
        )
        return
    for number, (one, other) in enumerate(zip(found, wanted, strict=True), 1):
        if one.messages != other.messages:
            yield (
                f"chat {number} was sent {list(one.messages)}, and {list(other.messages)} without a crash:"
                " a scenario is lived again after a crash; send each message under a client_id"
            )
        if one.failed and not other.failed:
            yield f"chat {number} ended in an error: {errors[number - 1]}"
