"""The raw rows of a chat with rows in every table, throughout its life, and damaged variants."""

from collections.abc import Mapping
from typing import Any

from tests.persistence.poisoned_chat import LIFE

from turnwise.persistence.chat_rows import Rows
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.states.facts import Facts
from turnwise.states.messages import TextPart
from turnwise.states.names import ChatState
from turnwise.states.triggers import EditMessage
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part

CHAT = "chat"


async def moments(url: str, *more: plans.Move | str) -> list[tuple[Rows, Facts]]:
    """Run the life and the given moves in a store; return rows and facts after each.

    A text among the moves is the id of an edited message.
    """
    store = store_from_url(url, durability="normal", now=None)
    await store.open()
    try:
        await plans.created(store, CHAT, owner="ann")
        found = []
        for move in (*LIFE, *more):
            change = await _edit(store, move) if isinstance(move, str) else move
            committed = await store.change(CHAT, plans.plan(change))
            if committed.facts.state is ChatState.streaming and committed.facts.step.attempt_open:
                step = committed.facts.step
                token = committed.facts.fence
                await store.append_events(
                    CHAT, token, ChatState.streaming, [part("1", step=step.number, attempt=step.attempt)]
                )
            found.append((await store.raw_rows(CHAT), await store.facts(CHAT)))
        return found
    finally:
        await store.close()


async def _edit(store: ChatStore, message_id: str) -> plans.Move:
    found = await store.cut_at(CHAT, message_id)
    return plans.move(EditMessage(cut=found[1], parts=(TextPart(text="other"),)))


def damaged(rows: Rows, table: str, number: int = -1, /, **values: Any) -> Rows:
    """Return the rows with other values in one of them."""
    found = [dict(row) for row in rows[table]]
    found[number] |= values
    return {**rows, table: found}


def without(rows: Rows, table: str, number: int = -1, /) -> Rows:
    """Return the rows without one of them."""
    found = list(rows[table])
    del found[number]
    return {**rows, table: found}


def where(rows: Rows, table: str, /, **values: Any) -> int:
    """Return the index of the first row with these values."""
    wanted: Mapping[str, Any] = values
    return next(n for n, row in enumerate(rows[table]) if wanted.items() <= row.items())
