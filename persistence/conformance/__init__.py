"""The conformance suite: what every store must prove, to be run by pytest over each of them.

Subclass `StoreConformance` and give pytest a fixture `store` that yields an open, empty store:

    @pytest.fixture
    async def store(tmp_path):
        store = SQLiteStore(tmp_path / "chats.db")
        await store.open()
        yield store
        await store.close()

    class TestSQLite(StoreConformance):
        pass

The tests are coroutines: anyio's pytest plugin runs them. Leases of no length and deadlines of no time stand in for
a clock that is moved, so the suite needs nothing of a store but its protocol.
"""

from __future__ import annotations

from turnwise.persistence.conformance.changing import ChangingConformance
from turnwise.persistence.conformance.holding import HoldingConformance
from turnwise.persistence.conformance.pruning import PruningConformance
from turnwise.persistence.conformance.reading import ReadingConformance


class StoreConformance(ChangingConformance, HoldingConformance, PruningConformance, ReadingConformance):
    """Everything that `ChatStore` promises."""


__all__ = ["StoreConformance"]
