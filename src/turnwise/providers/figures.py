"""Figures of models: limits that they are given, and what they report, where the impossible counts as unknown."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from msgspec.structs import replace

from turnwise.logger import logger
from turnwise.providers.protocol import Model
from turnwise.states.usage import FIGURES, Usage
from turnwise.states.values.plain import shown

_MOST_TOKENS: Final = 10**15
_ENOUGH_TOKENS: Final = 4096


def is_for_answers(limit: object) -> bool:
    """Whether a limit of the output, in tokens, may be meant for answers alone: a summary could be cut short by it."""
    return isinstance(limit, int | float) and not isinstance(limit, bool) and limit < _ENOUGH_TOKENS


def tokens(figure: object, what: str) -> int | None:
    """Return a number of tokens that a model reported as `what`: a whole one, not below 0; else `None`."""
    whole = int(figure) if isinstance(figure, float) and figure.is_integer() else figure
    if isinstance(whole, int) and not isinstance(whole, bool) and 0 <= whole <= _MOST_TOKENS:
        return int(whole)
    _tell(figure, what)
    return None


def usage_of(usage: object) -> Usage | None:
    """Return the usage that a model reported, each figure one that can be booked, or unknown."""
    if not isinstance(usage, Usage):
        _tell(usage, "usage")
        return None
    figures: dict[str, Any] = {name: tokens(getattr(usage, name), name) for name in FIGURES}
    figures["compaction"] = None if usage.compaction is None else usage_of(usage.compaction)
    figures |= {name: bool(getattr(usage, name)) for name in ("partial", "cost_partial")}
    changes = {name: figure for name, figure in figures.items() if figure is not getattr(usage, name)}
    return replace(usage, **changes) if changes else usage


def _tell(figure: object, what: str) -> None:
    if figure is not None:
        logger.warning("figure_unknown", figure=what, problem=f"a model reported {shown(figure)}; it counts as unknown")


OURS: Final = frozenset({"scripted", "demo", "simulated"})
"""Providers that no table knows: the models that turnwise ships."""


def window_of(model: Model) -> int | None:
    """Return a model's context window in tokens: what the model says, else what the table of `genai-prices` says.

    `None` if neither knows it. The table is loaded when it is first asked for; it comes with the `models` extra.
    """
    limit = tokens(model.context_limit, "context_limit")
    if limit is not None or model.provider in OURS or find_spec("genai_prices") is None:
        return limit
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - the table takes long to load

    try:
        _, listed = get_snapshot().find_provider_model(model.name, None, model.provider, None)
    except LookupError:
        return None
    return listed.context_window
