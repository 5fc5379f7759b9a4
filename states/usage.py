"""Token counts in which unknown is never zero."""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec.structs import replace

from turnwise.states.values import Checked, Value

_Count = TypeVar("_Count", int, "Usage")


class Usage(Value, metaclass=Checked, frozen=True, kw_only=True):
    """What model calls consumed, in tokens. `None` means that nobody reported the figure."""

    input_tokens: int | None = None
    """All prompt tokens, cached ones included."""
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    partial: bool = False
    """True when a call is missing from the sums: interrupted, discarded, or silent about its usage."""
    compaction: Usage | None = None
    """The share of these counts that was spent on compactions."""

    @property
    def known(self) -> bool:
        """Whether any figure was reported."""
        return any(getattr(self, name) is not None for name in _FIGURES)

    def __add__(self, other: Usage) -> Usage:
        """Return the sum, figure by figure; a figure unknown on both sides stays unknown."""
        figures = {name: _sum(getattr(self, name), getattr(other, name)) for name in _FIGURES}
        share = _sum(self.compaction, other.compaction)
        return replace(self, **figures, partial=self.partial or other.partial, compaction=share)

    def marked_partial(self) -> Usage:
        """Return the same counts, marked as incomplete."""
        return self if self.partial else self + _INCOMPLETE

    def as_compaction(self) -> Usage:
        """Return the same counts, all of them also in the compaction share."""
        share = self if self.compaction is None else replace(self, compaction=None)
        return replace(self, compaction=share)


_FIGURES: Final = ("input_tokens", "output_tokens", "reasoning_tokens", "cache_read_tokens", "cache_write_tokens")
NO_USAGE = Usage()
_INCOMPLETE = Usage(partial=True)


def reported(usage: Usage | None) -> Usage:
    """Return `usage`, or, for a model call that reported none, an unknown usage marked partial."""
    return _INCOMPLETE if usage is None or not usage.known else usage


def _sum(left: _Count | None, right: _Count | None) -> _Count | None:
    if left is None:
        return right
    return left if right is None else left + right
