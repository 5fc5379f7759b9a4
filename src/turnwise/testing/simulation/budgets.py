"""The budgets of a simulation: operators set them, and each has to agree with what the calls of its chats used."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from decimal import Decimal
from random import Random
from typing import Any, Final

from turnwise.engine.engine import Engine
from turnwise.persistence.protocol import ChatStore
from turnwise.states.budgets import StoredBudget, key_of_chat, key_of_owner
from turnwise.states.errors import TurnwiseError
from turnwise.states.writes import RecordUsage

OWNER: Final = "anna"
"""Who owns the chats of a world, but for the one whose rows are damaged."""
_TOKENS: Final = (None, 3_000, 20_000, 200_000)
_DOLLARS: Final = (None, None, Decimal("0.002"), Decimal("0.02"))
_PLENTY: Final = 10**9
_MOST: Final = 40_000
"""Tokens: a call whose usage is unknown counts as no more, with any prompt."""


class Budgets:
    """The operators that set budgets. Each budget is there before its first call, and is never removed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._keys: dict[str, dict[str, str]] = {}
        """The budgets there are: whose each is, by its key."""
        self._lifted = False
        self.met: Counter[str] = Counter()
        """How often each check had something to look at."""

    @property
    def deeds(self) -> list[Callable[[Engine, str], Any]]:
        return [self.set_budget]

    def is_wanted(self) -> bool:
        """Whether the next one that could have a budget gets one."""
        return self._random.random() < 0.4

    async def limit(self, engine: Engine, chat_id: str | None = None) -> None:
        """Give a budget to a chat that has made no call yet, or to the owner of all."""
        whose = {"owner": OWNER} if chat_id is None else {"chat_id": chat_id}
        await self._limit(engine, key_of_owner(OWNER) if chat_id is None else key_of_chat(chat_id), whose)

    async def _limit(self, engine: Engine, key: str, whose: dict[str, str]) -> None:
        tokens, cost = self._random.choice(_TOKENS), self._random.choice(_DOLLARS)
        self._keys[key] = whose  # before it is known to be stored: the answer may be lost
        await engine.set_budget(tokens=tokens if tokens or cost else _PLENTY, cost=cost, **whose)  # type: ignore[arg-type]
        if self._lifted:
            await self.lift(engine)

    async def set_budget(self, engine: Engine, _chat_id: str) -> None:
        """Raise or lower the limits of a budget."""
        if self._keys:
            key = self._random.choice(sorted(self._keys))
            await self._limit(engine, key, self._keys[key])

    async def lift(self, engine: Engine) -> None:
        """Let all budgets leave plenty, those too that operators are about to set."""
        self._lifted = True
        for whose in self._keys.values():
            await engine.set_budget(tokens=_PLENTY, **whose)  # type: ignore[arg-type]

    async def problems(self, store: ChatStore) -> AsyncIterator[str]:
        """Yield where a budget is not what the calls of its chats add up to, once no call is open."""
        for budget in await store.budgets(keys=sorted(self._keys)):
            if budget.reservations:
                yield f"the budget {budget.key} has reservations left for {sorted(budget.reservations)}"
            of_owner = budget.chat_id is None
            chats = await store.ids(prefix="", limit=10_000, owner=OWNER) if of_owner else [budget.chat_id]
            entries: list[RecordUsage] = []
            for chat_id in chats:
                with suppress(TurnwiseError):
                    entries += await store.ledger(str(chat_id))
            self.met["calls that a budget paid"] += len(entries)
            if not _agrees(budget, entries):
                yield f"the budget {budget.key} has spent {budget.spent}; its calls do not add up to that"


def _agrees(budget: StoredBudget, entries: list[RecordUsage]) -> bool:
    counted = [entry for entry in entries if entry.usage.known or entry.usage.partial]
    tokens = sum((entry.usage.input_tokens or 0) + (entry.usage.output_tokens or 0) for entry in counted)
    estimated = sum(entry.usage.partial and entry.purpose != "title" for entry in counted)
    dollars = sum((entry.usage.cost or Decimal(0) for entry in counted), Decimal(0))
    unpriced = sum(entry.usage.cost is None for entry in counted)
    return (
        tokens <= budget.spent.tokens <= tokens + estimated * _MOST
        and budget.spent.cost == dollars
        and budget.unpriced == unpriced
    )
