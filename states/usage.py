"""Token counts in which unknown is never zero."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Usage(BaseModel):
    """What model calls consumed, in tokens. `None` means that nobody reported the figure."""

    model_config = ConfigDict(frozen=True)

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
        return not (
            self.input_tokens is None
            and self.output_tokens is None
            and self.reasoning_tokens is None
            and self.cache_read_tokens is None
            and self.cache_write_tokens is None
        )

    def __add__(self, other: Usage) -> Usage:
        """Return the sum, figure by figure; a figure unknown on both sides stays unknown."""
        return Usage(
            input_tokens=_add(self.input_tokens, other.input_tokens),
            output_tokens=_add(self.output_tokens, other.output_tokens),
            reasoning_tokens=_add(self.reasoning_tokens, other.reasoning_tokens),
            cache_read_tokens=_add(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens=_add(self.cache_write_tokens, other.cache_write_tokens),
            partial=self.partial or other.partial,
            compaction=_share(self.compaction, other.compaction),
        )

    def marked_partial(self) -> Usage:
        """Return the same counts, marked as incomplete."""
        return self if self.partial else self + _INCOMPLETE

    def as_compaction(self) -> Usage:
        """Return the same counts, all of them also in the compaction share."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens,
            cache_read_tokens=self.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens,
            partial=self.partial,
            compaction=self if self.compaction is None else self.model_copy(update={"compaction": None}),
        )


NO_USAGE = Usage()
_INCOMPLETE = Usage(partial=True)


def reported(usage: Usage | None) -> Usage:
    """Return `usage`, or, for a model call that reported none, an unknown usage marked partial."""
    return _INCOMPLETE if usage is None or not usage.known else usage


def _add(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right


def _share(left: Usage | None, right: Usage | None) -> Usage | None:
    if left is None:
        return right
    return left if right is None else left + right
