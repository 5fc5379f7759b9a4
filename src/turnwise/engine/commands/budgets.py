"""Sets and lists budgets."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from turnwise.engine.config.results import Budget, budget_of
from turnwise.logger import logger
from turnwise.persistence.protocol import ChatStore
from turnwise.states.budgets import StoredBudget, key_of_chat, key_of_owner, keys_of
from turnwise.states.errors import InvalidArgument
from turnwise.states.names import Period
from turnwise.time_zones import time_zone


class BudgetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a budget by an operator."""

    owner: str | None
    chat_id: str | None
    tokens: int | None
    cost: Decimal | None
    per: Period | None
    timezone: str
    actor: str

    def __call__(self, stored: StoredBudget | None, _now: datetime) -> StoredBudget | None:
        if self.tokens is None and self.cost is None:
            return None
        budget = stored or StoredBudget(owner=self.owner, chat_id=self.chat_id)
        return replace(
            budget,
            tokens=self.tokens,
            cost=self.cost,
            per=self.per,
            timezone=self.timezone,
            until=None,  # the store computes it
            actor=self.actor,
        )


async def set_budget(  # noqa: PLR0913 - the contract
    store: ChatStore,
    *,
    owner: str | None,
    chat_id: str | None,
    tokens: int | None,
    cost: float | Decimal | None,
    per: Period | None,
    timezone: str,
    actor: str,
) -> Budget | None:
    if (owner is None) == (chat_id is None):
        raise InvalidArgument("owner", "pass either an owner or a chat_id")
    time_zone(timezone)
    if chat_id is not None:
        await store.facts(chat_id)
    dollars = None if cost is None else Decimal(str(cost))  # by its text: the float 0.1 is a little more
    limits = BudgetLimits(
        owner=owner, chat_id=chat_id, tokens=tokens, cost=dollars, per=per, timezone=timezone, actor=actor
    )
    key = key_of_chat(chat_id) if chat_id is not None else key_of_owner(owner or "")
    stored = await store.change_budget(key, limits)
    logger.info("budget_set", key=key, actor=actor, tokens=tokens, cost=dollars, per=per)
    return None if stored is None else budget_of(stored)


async def list_budgets(store: ChatStore, *, owner: str | None = None, chat_id: str | None = None) -> list[Budget]:
    keys = [] if owner is None else [key_of_owner(owner)]
    if chat_id is not None:
        keys += keys_of(chat_id, (await store.facts(chat_id)).profile.owner)
    return [budget_of(stored) for stored in await store.budgets(keys=keys or None)]
