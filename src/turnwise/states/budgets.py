"""Budgets that chats spend together: what is left of them, what a model call reserves, and what it settles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from msgspec import field
from msgspec.structs import replace

from turnwise.states.names import Period, StopReason
from turnwise.states.usage import EXACT, Usage
from turnwise.states.values.values import Time, Value
from turnwise.states.writes import RecordUsage, Reserve, Write

OUTPUT_TOKENS: Final = 4096
"""The tokens of a reply that are reserved where `max_output_tokens` sets no bound, as far as they are left."""
_NOTHING: Final = Decimal(0)


class Amount(Value, frozen=True):
    """Tokens, and US dollars."""

    tokens: int = 0
    """Tokens."""
    cost: Decimal = _NOTHING
    """US dollars."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, EXACT.add(self.cost, other.cost))


class Reservation(Value, frozen=True):
    """What an open model call has reserved."""

    tokens: int
    cost: Decimal | None
    """`None` if the price is unknown: the call reserves all dollars that are left."""


class CallEstimator(Value, frozen=True, kw_only=True):
    """Estimates the next model call of a chat, by the prices of its model and the bound of its replies."""

    max_output_tokens: int | None = None
    input_price: Decimal | None = None
    """US dollars of a token of the prompt; `None` if it is unknown."""
    output_price: Decimal | None = None

    def estimate(self, prompt: int, output: int) -> Reservation:
        """Return what a call of so many tokens reserves."""
        cost = None
        if self.input_price is not None and self.output_price is not None:
            cost = EXACT.add(EXACT.multiply(self.input_price, prompt), EXACT.multiply(self.output_price, output))
        return Reservation(prompt + output, cost)

    def most(self, prompt: int) -> Reservation:
        """Return what a call with such a prompt is expected to use at most."""
        return self.estimate(prompt, OUTPUT_TOKENS if self.max_output_tokens is None else self.max_output_tokens)

    def least(self, prompt: int) -> Reservation:
        """Return what must be left for a call with such a prompt to begin."""
        return self.estimate(prompt, self.max_output_tokens or 1)


class StoredBudget(Value, frozen=True, kw_only=True):
    """What an owner's chats, or one chat, may spend in a period, and have spent."""

    owner: str | None = None
    chat_id: str | None = None
    tokens: int | None = None
    """`None`: any number."""
    cost: Decimal | None = None
    """US dollars; `None`: any amount."""
    per: Period | None = None
    """`None`: for good."""
    timezone: str = "UTC"
    until: Time | None = None
    """When the period ends."""
    actor: str = ""
    """The actor that set the limits."""
    spent: Amount = Amount()
    unpriced: int = 0
    """How many calls of the period have no known price: `spent` lacks theirs."""
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    """What the open calls have reserved, by chat."""

    @property
    def key(self) -> str:
        return key_of_chat(self.chat_id) if self.chat_id is not None else key_of_owner(self.owner or "")

    @property
    def reserved(self) -> Amount:
        """What the open calls have reserved together."""
        every = self.reservations.values()
        known = sum((Amount(one.tokens, one.cost or _NOTHING) for one in every), Amount())
        if self.cost is None or all(one.cost is not None for one in every):
            return known
        return replace(known, cost=max(known.cost, EXACT.subtract(self.cost, self.spent.cost)))

    def left_of(self, used: Amount) -> tuple[int | None, Decimal | None]:
        """Return the tokens and dollars that are left once so much is used; `None` without a limit."""
        tokens = None if self.tokens is None else max(self.tokens - used.tokens, 0)
        cost = None if self.cost is None else max(EXACT.subtract(self.cost, used.cost), _NOTHING)
        return tokens, cost

    def shortage(self, least: Reservation, used: Amount) -> StopReason | None:
        """Return which limit leaves no room for a call, once so much is used."""
        tokens, cost = self.left_of(used)
        if tokens is not None and tokens < least.tokens:
            return StopReason.token_budget
        if cost is not None and (not cost or (least.cost is not None and cost < least.cost)):
            return StopReason.cost_budget
        return None

    def reserve(self, chat_id: str, most: Reservation) -> StoredBudget:
        """Reserve for a chat's call what it may use, or all that is left."""
        tokens, cost = self.left_of(self.spent + self.reserved)
        reservation = Reservation(
            most.tokens if tokens is None else min(most.tokens, tokens),
            most.cost if cost is None or most.cost is None else min(most.cost, cost),
        )
        return replace(self, reservations={**self.reservations, chat_id: reservation})

    def settle(self, chat_id: str, usage: Usage, *, title: bool = False) -> StoredBudget:
        """Count what a call has used, in the place of what it reserved; of a title, which reserves nothing, as well.

        A call that was cut off or reported nothing counts as its reservation, or more if it reported more.
        """
        own = None if title else self.reservations.get(chat_id)
        others = {chat: one for chat, one in self.reservations.items() if own is None or chat != chat_id}
        if not (usage.known or usage.partial):  # no model was called
            return replace(self, reservations=others)
        least = own if own is not None and usage.partial else Reservation(0, _NOTHING)
        tokens = max((usage.input_tokens or 0) + (usage.output_tokens or 0), least.tokens)
        spent = self.spent + Amount(tokens, max(usage.cost or _NOTHING, least.cost or _NOTHING))
        is_unpriced = usage.cost is None and (least is not own or least.cost is None)
        return replace(self, reservations=others, spent=spent, unpriced=self.unpriced + is_unpriced)


def key_of_owner(owner: str) -> str:
    return f"owner:{owner}"


def key_of_chat(chat_id: str) -> str:
    return f"chat:{chat_id}"


def keys_of(chat_id: str, owner: str | None) -> list[str]:
    return [key_of_chat(chat_id), *([] if owner is None else [key_of_owner(owner)])]


class Funds(Value, frozen=True):
    """The budgets that a chat spends, as a transaction has read and locked them."""

    budgets: tuple[StoredBudget, ...]
    estimator: CallEstimator = CallEstimator()

    def shortage(self, prompt: int) -> tuple[StoredBudget, StopReason] | None:
        """Return the budget that leaves no room for a call now, and which of its limits."""
        return self._short(prompt, lambda budget: budget.spent + budget.reserved)

    def spent(self, prompt: int) -> tuple[StoredBudget, StopReason] | None:
        """Return the budget that leaves no room for a call even once all open ones have used nothing."""
        return self._short(prompt, lambda budget: budget.spent)

    def _short(self, prompt: int, used: Callable[[StoredBudget], Amount]) -> tuple[StoredBudget, StopReason] | None:
        least = self.estimator.least(prompt)
        found = ((budget, budget.shortage(least, used(budget))) for budget in self.budgets)
        return next(((budget, reason) for budget, reason in found if reason is not None), None)

    def after(self, chat_id: str, writes: Iterable[Write]) -> Funds:
        budgets = self.budgets
        for write in writes:
            if isinstance(write, Reserve):
                budgets = tuple(one.reserve(chat_id, Reservation(write.tokens, write.cost)) for one in budgets)
            elif isinstance(write, RecordUsage):
                is_title = write.purpose == "title"
                budgets = tuple(one.settle(chat_id, write.usage, title=is_title) for one in budgets)
        return replace(self, budgets=budgets)
