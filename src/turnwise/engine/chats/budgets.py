"""Budgets: what owners and chats may spend, declared by operators."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from turnwise.engine.chats.declaration import Commanded, command
from turnwise.engine.config.results import Budget
from turnwise.states.names import Period
from turnwise.states.values.limits import Key, Name, Ordinal

_Float = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
_Decimal = Annotated[Decimal, Field(ge=0, le=10**9, allow_inf_nan=False, max_digits=40)]


class Budgets(Commanded):
    """What can be done with budgets."""

    @command("POST", "/budgets", repeatable=True)
    async def set_budget(
        self,
        *,
        owner: Key | None = None,
        chat_id: str | None = None,
        tokens: Ordinal | None = None,
        cost: _Float | _Decimal | None = None,
        per: Period | None = None,
        timezone: Name = "UTC",
    ) -> Budget | None:
        """Limit what an owner's chats, or one chat, may spend; without a limit, remove the budget and return `None`.

        A model call reserves its estimate as it starts, and counts what it used once it ends. Where too little is left,
        the turn ends with `token_budget` or `cost_budget`, and messages are refused with `BudgetSpent`. What was spent
        in the period stays counted if the limits are changed.

        Args:
            owner: whose chats, subagents included.
            chat_id: the chat, if it is not an owner's budget.
            tokens: of prompts and replies together.
            cost: US dollars. Calls of unknown price are counted in `unpriced`.
            per: `day` or `month`: the calendar's, in the time zone; without it the budget is for good.
            timezone: its name, such as `Europe/Berlin`.

        Raises:
            InvalidArgument: not exactly one of owner and chat is given, or there is no such time zone.
            ChatNotFound: there is no such chat.
        """

    @command("GET", "/budgets", operation="list_budgets")
    async def budgets(self, *, owner: Key | None = None, chat_id: str | None = None) -> list[Budget]:
        """Return all budgets, or an owner's, or those that a chat spends, with what is spent, reserved and left."""
