"""What a store promises about a chat of another store: all of it arrives, in one transaction, and goes on."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from importlib import resources

from turnwise.persistence.archive.format import ArchiveWriter, WholeChat
from turnwise.persistence.archive.reader import ChatReader
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.blobs.spool import Spool
from turnwise.persistence.protocol import ChatStore, Plan
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatDeleted, ChatExists, ChatNotFound, QueueFull
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Imported, LeaseExpired
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.deleting import deleted
from turnwise.testing.conformance.plans import contents, failure_of, refused
from turnwise.testing.conformance.reading import texts

_ID = "traveller"


@cache
def exported_lines() -> tuple[str, ...]:
    """Return a chat that was exported in the first version of the format, held by a worker, with rows in every table.

    From the first release on the file is never written anew: an exported chat can be imported later.
    """
    file = resources.files("turnwise.testing.conformance") / "exported_chat.jsonl"
    return tuple(file.read_text(encoding="utf-8").splitlines())


def read_chat(lines: Iterable[str]) -> WholeChat:
    """Return the chat without files that lines hold, checked."""
    with Spool() as spool:
        reader = ChatReader(None, spool)
        reader.take(lines)
        return reader.done()


def _traveller() -> WholeChat:
    return read_chat(exported_lines())


def _arriving() -> Plan:
    return plans.plan(plans.move(Imported()), plans.move(LeaseExpired(token=plans.HOLDER)))


class ImportingConformance:
    """A chat that was exported from any store is as good as one of the store's own."""

    async def test_all_of_an_exported_chat_arrives_and_verifies(self, store: ChatStore) -> None:
        """Without the lease it had: the plan ends it in the same transaction."""
        chat = _traveller()
        assert chat.rows.lease is not None
        committed = await store.import_chat(chat, _arriving())
        facts = await store.facts(_ID)
        assert committed.facts == facts
        assert (facts.state, facts.lease, facts.profile.owner) == (ChatState.pending, None, "ann")
        assert await store.lease_expiry(_ID) is None
        rows = await store.rows(_ID)
        assert verify_stored(_ID, rows).ok, verify_stored(_ID, rows)
        log = await store.audit(_ID)
        assert [record.hash for record in log[:-2]][-1] == chat.rows.chat["head"]
        assert [record.trigger for record in log[-2:]] == ["imported", "lease_expired"]
        assert texts(await store.history(_ID))[:2] == ["one", "1"]
        assert [queued.parts[0].text for queued in facts.queue] == ["and then?"]  # type: ignore[union-attr]
        assert {name: len(one) for name, one in rows.tables.items() if name not in ("messages", "events")} == {
            name: len(one) for name, one in chat.rows.tables.items() if name not in ("messages", "events")
        }
        assert await store.receipt(_ID, "c1") is not None
        assert [part.part.delta for part in await store.shown(_ID, 1, 1)] == ["1"]
        events = await store.events(_ID, after=0, limit=1000)
        assert [event.seq for event in events] == list(range(1, facts.last_seq + 1))

    async def test_an_imported_chat_goes_on_like_any_other(self, store: ChatStore) -> None:
        """A worker takes it, and exporting it again gives what another store takes in."""
        await store.import_chat(_traveller(), _arriving())
        (claimed,) = await store.claim(plans.plan(plans.claim()), runs=plans.RUNS, limit=10)
        assert claimed.facts.chat_id == _ID
        assert claimed.facts.fence > 1
        writer = ArchiveWriter(WholeChat(await store.rows(_ID)))
        again = read_chat([*writer.rows(), writer.checkpoint(None)])
        assert again.rows.chat["version"] == claimed.facts.version
        assert [one.chat_id for one in await store.chats(owner="ann", state=None, limit=9, after=None)] == [_ID]  # type: ignore[union-attr]

    async def test_a_chat_is_taken_in_once(self, store: ChatStore) -> None:
        """Not beside one of that id, nor in the place of one that was deleted."""
        await store.import_chat(_traveller(), _arriving())
        await refused(store, _ID, store.import_chat(_traveller(), _arriving()), ChatExists)
        await deleted(store, _ID)
        await failure_of(store.import_chat(_traveller(), _arriving()), ChatDeleted)
        assert await store.ids(prefix="", limit=10) == []

    async def test_a_plan_that_decides_nothing_or_raises_takes_nothing_in(self, store: ChatStore) -> None:
        """No row is left, and the id stays free."""

        def refuse(facts: Facts, now: datetime) -> list[Decision]:  # noqa: ARG001 - a plan's signature
            raise QueueFull(1)

        await plans.created(store, "beside")
        before = await contents(store, "beside")
        committed = await store.import_chat(_traveller(), plans.idle)
        assert (committed.decisions, committed.facts.lease is None) == ((), False)
        await failure_of(store.import_chat(_traveller(), refuse), QueueFull)
        await failure_of(store.facts(_ID), ChatNotFound)
        assert await store.orphans() == []
        assert await contents(store, "beside") == before
        assert (await store.import_chat(_traveller(), _arriving())).decisions
