"""Sums up usage and cost of model calls by owner, agent, model and day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, tzinfo
from typing import Final

import msgspec

from turnwise.engine.config.results import UsageSum
from turnwise.persistence.protocol import ChatStore
from turnwise.states.names import UsageKey
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.writes import RecordUsage

_PAGE: Final = 5000
_FIRST: Final = (0, 0, -1)
_Group = tuple[object, ...]


class _Sum(msgspec.Struct):
    calls: int = 0
    usage: Usage = NO_USAGE
    unpriced: int = 0


class UsageReport:
    """Reads the ledgers of all chats page by page, and keeps a sum of each group, for times from `since` to `until`."""

    def __init__(self, by: Sequence[UsageKey], zone: tzinfo, *, since: datetime | None, until: datetime | None) -> None:
        self._by = by
        self._zone = zone
        self._since = since
        self._until = until
        self._sums: dict[_Group, _Sum] = {}

    async def read(self, store: ChatStore, owner: str | None) -> list[UsageSum]:
        after: tuple[int, int, int] | None = _FIRST
        while after is not None:
            page = await store.usage_page(after=after, owner=owner, limit=_PAGE)
            for whose, entry in page.entries:
                if self._is_within(entry.at):
                    self._add(whose, entry)
            after = page.next
        groups = sorted(self._sums.items(), key=lambda item: [(part is not None, str(part)) for part in item[0]])
        return [self._result(group, found) for group, found in groups]

    def _is_within(self, at: datetime | None) -> bool:
        if at is None:
            return self._since is None and self._until is None
        return (self._since is None or at >= self._since) and (self._until is None or at < self._until)

    def _add(self, owner: str | None, entry: RecordUsage) -> None:
        parts: dict[UsageKey, object] = {
            "owner": owner,
            "agent": entry.agent,
            "model": entry.model,
            "day": None if entry.at is None else entry.at.astimezone(self._zone).date(),
        }
        found = self._sums.setdefault(tuple(parts[name] for name in self._by), _Sum())
        found.calls += 1
        found.usage += entry.usage
        found.unpriced += entry.usage != NO_USAGE and (entry.usage.cost is None or entry.usage.cost_partial)

    def _result(self, group: _Group, found: _Sum) -> UsageSum:
        parts = dict(zip(self._by, group, strict=True))
        day = parts.get("day")
        return UsageSum(
            owner=_text(parts.get("owner")),
            agent=_text(parts.get("agent")),
            model=_text(parts.get("model")),
            day=day.isoformat() if isinstance(day, date) else None,
            calls=found.calls,
            usage=found.usage,
            unpriced=found.unpriced,
        )


def _text(part: object) -> str | None:
    return None if part is None else str(part)
