"""The conformance suite: pytest runs it over every store, and every store must pass it.

Subclass `StoreConformance` and give pytest a fixture `store` that yields an open, empty store:

    @pytest.mark.anyio
    class TestSQLite(StoreConformance):
        @pytest.fixture
        def anyio_backend(self):
            return "asyncio"

        @pytest.fixture
        async def store(self, tmp_path):
            store = SQLiteStore(tmp_path / "chats.db")
            await store.open()
            yield store
            await store.close()

A file store is tested beside any chat store: subclass `FilesConformance`, whose `files_beside` returns it.

The tests are coroutines: anyio's pytest plugin runs those that have its mark. Leases and deadlines of zero seconds take
the place of a clock that can be moved, so the suite needs only a store's protocol.
"""

from __future__ import annotations

from turnwise.testing.conformance.changing import ChangingConformance
from turnwise.testing.conformance.deleting import DeletingConformance
from turnwise.testing.conformance.files import FilesConformance
from turnwise.testing.conformance.holding import HoldingConformance
from turnwise.testing.conformance.importing import ImportingConformance
from turnwise.testing.conformance.pruning import PruningConformance
from turnwise.testing.conformance.reading import ReadingConformance
from turnwise.testing.conformance.rewriting import RewritingConformance
from turnwise.testing.conformance.sharing import SharingConformance


class StoreConformance(
    ChangingConformance,
    DeletingConformance,
    FilesConformance,
    HoldingConformance,
    ImportingConformance,
    PruningConformance,
    ReadingConformance,
    RewritingConformance,
    SharingConformance,
):
    """Everything that `ChatStore` promises."""


__all__ = ["FilesConformance", "StoreConformance"]
