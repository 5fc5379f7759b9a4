"""Token counts and costs in which unknown is never zero."""

from __future__ import annotations

from decimal import Context, Decimal
from operator import attrgetter
from typing import Final, TypeVar

from msgspec.structs import replace

from turnwise.states.values.values import Checked, Value

_Count = TypeVar("_Count", int, Decimal, "Usage")


class Usage(Value, metaclass=Checked, frozen=True, kw_only=True):
    """What model calls consumed, in tokens, and what that costs. `None` means that the figure is unknown.

    A figure that a model reports counts as unknown if it is no whole number from 0 to 10^15.
    """

    input_tokens: int | None = None
    """All prompt tokens, cached ones included."""
    output_tokens: int | None = None
    """Tokens of the reply."""
    reasoning_tokens: int | None = None
    """Tokens of reasoning."""
    cache_read_tokens: int | None = None
    """Prompt tokens that were read from the provider's cache."""
    cache_write_tokens: int | None = None
    """Prompt tokens that were written to the provider's cache."""
    partial: bool = False
    """True when a call is missing from the sums: interrupted, discarded, or silent about its usage."""
    cost: Decimal | None = None
    """US dollars, by the list prices at the time of the calls: a decimal number, in JSON as text."""
    cost_partial: bool = False
    """True when `cost` leaves something out: a call without a known price, or one that is missing from the sums."""
    compaction: Usage | None = None
    """The share of these figures that was spent on compactions."""

    def __post_init__(self) -> None:
        if self.cost is not None and not (self.cost.is_finite() and 0 <= self.cost <= _MOST_DOLLARS):
            raise ValueError(f"`cost` must be a number of US dollars from 0 to {_MOST_DOLLARS:,}")

    @property
    def known(self) -> bool:
        """Whether any figure was reported."""
        return self.cost is not None or _figures_of(self) != _UNKNOWN

    @property
    def _is_unpriced(self) -> bool:
        return self.cost is None and (self.partial or self.known)

    def __add__(self, other: Usage) -> Usage:
        """Return the sum, figure by figure; a figure unknown on both sides stays unknown."""
        sums = map(_sum, _figures_of(self), _figures_of(other))
        share = _sum(self.compaction, other.compaction)
        cost = _sum(self.cost, other.cost)
        leaves_out = cost is not None and (self._is_unpriced or other._is_unpriced)
        return replace(
            self,
            **dict(zip(FIGURES, sums, strict=True)),
            partial=self.partial or other.partial,
            cost=cost,
            cost_partial=self.cost_partial or other.cost_partial or leaves_out,
            compaction=share,
        )

    def marked_partial(self) -> Usage:
        """Return the same counts, marked as incomplete."""
        return self if self.partial else self + _INCOMPLETE

    def as_compaction(self) -> Usage:
        """Return the same counts, all of them also in the compaction share."""
        share = self if self.compaction is None else replace(self, compaction=None)
        return replace(self, compaction=share)


FIGURES: Final = ("input_tokens", "output_tokens", "reasoning_tokens", "cache_read_tokens", "cache_write_tokens")
_figures_of: Final = attrgetter(*FIGURES)
_UNKNOWN: Final = (None,) * len(FIGURES)
NO_USAGE = Usage()
_INCOMPLETE = Usage(partial=True)
_MOST_DOLLARS: Final = 10**15
EXACT: Final = Context(prec=100)
"""More digits than any sum of costs has."""


def reported(usage: Usage | None) -> Usage:
    """Return `usage`, or, for a model call that reported none, an unknown usage marked partial."""
    return _INCOMPLETE if usage is None or not usage.known else usage


def _sum(left: _Count | None, right: _Count | None) -> _Count | None:
    if left is None:
        return right
    if right is None:
        return left
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return EXACT.add(left, right)  # not in the application's own context, which may round
    return left + right
