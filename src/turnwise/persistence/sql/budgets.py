"""Budgets as both stores keep them: one row each, read and written in the transaction of what spends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from msgspec.structs import replace

from turnwise.logger import logger
from turnwise.persistence.rows import BUDGETS, load_budget
from turnwise.persistence.sql.database import SQLDatabase
from turnwise.persistence.stored_chat import IntegrityIssue
from turnwise.states.budgets import Amount, Funds, StoredBudget, key_of_chat, keys_of
from turnwise.states.errors import ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.usage import Usage
from turnwise.time_zones import time_zone

BudgetChange = Callable[[StoredBudget | None, datetime], StoredBudget | None]
"""Returns what becomes of a budget, given the stored one, if there is one, and the time. `None` removes it."""

_LOST: Final = Usage(partial=True)


def in_period(budget: StoredBudget, now: datetime) -> StoredBudget:
    """Return the budget in the period of now: as a new one begins, nothing is spent. What is reserved stays so."""
    if budget.until is not None and now < budget.until:
        return budget
    if budget.per is None:
        return budget if budget.until is None else replace(budget, until=None)
    renewed = budget if budget.until is None else replace(budget, spent=Amount(), unpriced=0)
    return replace(renewed, until=_end_of_period(budget, now))


def _end_of_period(budget: StoredBudget, now: datetime) -> datetime:
    zone = time_zone(budget.timezone)
    today = now.astimezone(zone).date()
    next_day = today + timedelta(days=1)
    if budget.per == "month":
        next_day = date(today.year + today.month // 12, today.month % 12 + 1, 1)
    return datetime.combine(next_day, time.min, tzinfo=zone).astimezone(UTC)


def _read(rows: Iterable[Sequence[object]], now: datetime, chat_id: str = "") -> tuple[StoredBudget, ...]:
    return tuple(in_period(load_budget(key, body, chat_id), now) for key, body in rows)


def _readable(rows: Iterable[Sequence[object]], now: datetime) -> list[StoredBudget]:
    found: list[StoredBudget] = []
    for row in rows:
        try:
            found += _read([row], now)
        except ChatUnreadable as error:
            logger.warning("budget_unreadable", key=str(row[0]), problem=error.problem)
    return found


async def unreadable_budgets(db: SQLDatabase) -> list[IntegrityIssue]:
    issues = []
    for key, body in await db.fetch("all_budgets", limit=None):
        try:
            load_budget(key, body, "")
        except ChatUnreadable as error:
            issues.append(IntegrityIssue(error.column, error.problem))
    return issues


async def funds_of(db: SQLDatabase, facts: Facts, now: datetime) -> Funds | None:
    """Return the budgets that a chat spends, locked until the transaction ends; `None` if there are none."""
    rows = await db.fetch("funds", keys=keys_of(facts.chat_id, facts.profile.owner))
    return Funds(_read(rows, now, facts.chat_id)) if rows else None


async def store_funds(db: SQLDatabase, funds: Funds | None) -> None:
    for budget in () if funds is None else funds.budgets:
        await db.execute("put_budget", key=budget.key, body=BUDGETS.dump(budget))


async def forget_chat(db: SQLDatabase, facts: Facts, now: datetime) -> None:
    """Remove the budget of a chat that is being deleted; a call that it has open counts as lost."""
    rows = await db.fetch("funds", keys=keys_of(facts.chat_id, facts.profile.owner))
    if not rows:
        return
    settled = [one.settle(facts.chat_id, _LOST) for one in _readable(rows, now) if facts.chat_id in one.reservations]
    await store_funds(db, Funds(tuple(settled)))
    await db.execute("delete_budget", key=key_of_chat(facts.chat_id))


async def change_budget(db: SQLDatabase, key: str, change: BudgetChange) -> StoredBudget | None:
    """Change, make or remove a budget, and return it. An unreadable one is replaced."""
    now = await db.now()
    is_new = await db.execute("begin_budget", key=key)
    stored = () if is_new else _readable(await db.fetch("funds", keys=[key]), now)
    changed = change(stored[0] if stored else None, now)
    if changed is None:
        await db.execute("delete_budget", key=key)
        return None
    changed = in_period(changed, now)
    await store_funds(db, Funds((changed,)))
    return changed


async def stored_budgets(
    db: SQLDatabase, *, keys: Sequence[str] | None, limit: int | None = None
) -> list[StoredBudget]:
    """Return the budgets of these keys, or all or the first, in the order of their keys, as they stand now.

    Of all budgets, those that cannot be read are left out: `orphans` names them.

    Raises:
        ChatUnreadable: one of those that were asked for cannot be read.
    """
    if keys is None:
        return _readable(await db.fetch("all_budgets", limit=limit), await db.now())
    return list(_read(await db.fetch("budgets", keys=[*keys]), await db.now()))


async def import_budget(db: SQLDatabase, chat_id: str, budget: str | None) -> None:
    if budget is not None:
        await db.execute("put_budget", key=key_of_chat(chat_id), body=budget)
