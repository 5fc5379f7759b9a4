"""What the suite asks of a store in more than one place."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from turnwise.persistence.protocol import ChatStore
from turnwise.states.events import PartDelta, PartEvent

_E = TypeVar("_E", bound=Exception)


def part(text: str, *, step: int = 1, attempt: int = 1) -> PartEvent:
    """Return a piece of a reply."""
    return PartEvent(step=step, attempt=attempt, index=0, part=PartDelta(type="text", delta=text))


async def contents(store: ChatStore, chat_id: str) -> tuple[object, ...]:
    """Return all that a store says about a chat."""
    lease = await store.lease_expiry(chat_id)
    return (
        await store.facts(chat_id),
        await store.history(chat_id),
        await store.events(chat_id, after=0, limit=10_000),
        await store.audit(chat_id),
        await store.ledger(chat_id),
        lease and lease.expires,
    )


async def failure_of(call: Awaitable[object], kind: type[_E]) -> _E:
    """Return the error of the kind that a call must raise."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def refused(store: ChatStore, chat_id: str, call: Awaitable[object], kind: type[_E]) -> _E:
    """Return the error of the kind that a call must raise, having left the chat as it was."""
    before = await contents(store, chat_id)
    error = await failure_of(call, kind)
    assert await contents(store, chat_id) == before
    return error
