"""What a store promises about deleting: all of a chat goes, a tombstone stays, and the id is never used again."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import anyio
from msgspec.structs import replace

from turnwise.persistence.protocol import ChatStore, Committed
from turnwise.persistence.stored_chat import PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatDeleted, ChatExists, ChatNotFound, NotResting
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Archived, Create, Renamed, Unarchived
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import contents, failure_of, part, refused


def anything(rest: PartialRead, now: datetime) -> None:
    """Let any chat be deleted."""


async def deleted(store: ChatStore, chat_id: str) -> Tombstone:
    return await store.delete(chat_id, anything, actor="someone")


async def _rich(store: ChatStore, chat_id: str) -> Committed:
    """Create a chat with a row in every table that a chat at rest may have rows in."""
    asking = (plans.send("one", client_id="first"), plans.claim())
    await plans.created(store, chat_id, *asking)
    await store.append_events(chat_id, 1, ChatState.streaming, [part("h"), part("i")])
    await store.change(chat_id, plans.plan(plans.reply("hi", client=["c"])))
    return await store.change(chat_id, plans.plan(plans.send("queued")))


def _child_of(parent: str, forked_from: str | None = None, *ancestors: str) -> plans.Move:
    def made(facts: Facts, now: datetime) -> Decision:
        profile = replace(facts.profile, created_at=now, parent=parent, forked_from=forked_from, ancestors=ancestors)
        return plans.move(Create(profile=profile))(facts, now)

    return made


class DeletingConformance:
    """A deletion is complete or has not happened."""

    async def test_all_of_a_chat_goes_and_a_tombstone_stays(self, store: ChatStore) -> None:
        """It proves that the chat was there and what its log ended with; other chats are not touched."""
        committed = await _rich(store, "chat")
        await _rich(store, "other")
        untouched, log = await contents(store, "other"), await store.audit("chat")
        assert await store.tombstone("chat") is None
        tombstone = await deleted(store, "chat")
        assert (tombstone.chat_id, tombstone.actor) == ("chat", "someone")
        assert (tombstone.records, tombstone.head) == (len(log), log[-1].hash)
        assert tombstone.created_at == committed.facts.profile.created_at
        assert tombstone.deleted_at >= committed.at
        assert await store.tombstone("chat") == tombstone
        assert await contents(store, "other") == untouched
        assert await store.ids(prefix="", limit=10) == ["other"]
        assert [chat_id for _, chat_id in await store.chat_ids(after=0, limit=10)] == ["other"]
        assert await store.orphans() == []

    async def test_every_method_about_a_deleted_chat_says_when_it_was_deleted(self, store: ChatStore) -> None:
        """Reads and writes alike, also those that find nothing of a chat that never existed."""
        await _rich(store, "chat")
        tombstone = await deleted(store, "chat")
        methods: dict[str, Callable[[], Awaitable[object]]] = {
            "change": lambda: store.change("chat", plans.plan(plans.send("again"))),
            "repair": lambda: store.repair("chat", plans.idle),
            "create": lambda: store.create("chat", plans.plan(plans.create())),
            "append_events": lambda: store.append_events("chat", 1, ChatState.streaming, [part("h")]),
            "asking for an append": lambda: store.append_events("chat", 1, ChatState.streaming, []),
            "facts": lambda: store.facts("chat"),
            "rest": lambda: store.rest("chat"),
            "rows": lambda: store.rows("chat"),
            "raw_rows": lambda: store.raw_rows("chat"),
            "snapshot": lambda: store.snapshot("chat"),
            "history": lambda: store.history("chat"),
            "prompt": lambda: store.prompt("chat"),
            "cut_at": lambda: store.cut_at("chat", "m1"),
            "calls": lambda: store.calls("chat", ["c"]),
            "receipt": lambda: store.receipt("chat", "first"),
            "events": lambda: store.events("chat", after=0, limit=10),
            "shown": lambda: store.shown("chat", 1, 1),
            "audit": lambda: store.audit("chat"),
            "ledger": lambda: store.ledger("chat"),
            "lease_expiry": lambda: store.lease_expiry("chat"),
        }
        for method, ask in methods.items():
            error = await failure_of(ask(), ChatDeleted)
            assert (error.chat_id, error.deleted_at) == ("chat", tombstone.deleted_at), method
        assert await store.ids(prefix="", limit=10) == []

    async def test_the_store_knows_which_of_many_chats_were_deleted(self, store: ChatStore) -> None:
        """A process asks now and then about those that it remembers."""
        for chat_id in "abc":
            await plans.created(store, chat_id)
        await deleted(store, "a")
        await deleted(store, "b")
        assert await store.deleted(["b", "c", "never"]) == {"b"}
        assert await store.deleted([]) == frozenset()

    async def test_a_second_deletion_finds_the_first(self, store: ChatStore) -> None:
        """It asks no permission, and changes nothing."""
        await _rich(store, "chat")
        first = await deleted(store, "chat")

        def never(rest: PartialRead, now: datetime) -> None:  # noqa: ARG001 - a permission's signature
            raise AssertionError("no permission is to be asked for")

        assert await store.delete("chat", never, actor="another") == first
        assert await store.tombstone("chat") == first

    async def test_racing_deletions_leave_one_tombstone(self, store: ChatStore) -> None:
        """The first caller is named in it, and all callers get it."""
        await _rich(store, "chat")
        tombstones: list[Tombstone] = []

        async def race(actor: str) -> None:
            tombstones.append(await store.delete("chat", anything, actor=actor))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(race, f"racer {number}")
        assert tombstones == [await store.tombstone("chat")] * 5

    async def test_a_chat_that_never_was_is_not_deleted(self, store: ChatStore) -> None:
        """It gets no tombstone, so its id is free."""
        assert not isinstance(await failure_of(deleted(store, "chat"), ChatNotFound), ChatDeleted)
        assert await store.tombstone("chat") is None
        await plans.created(store, "chat")

    async def test_a_refusal_deletes_nothing(self, store: ChatStore) -> None:
        """The one who decides sees where the chat stands in this very transaction, and the store's time."""
        committed = await _rich(store, "chat")
        seen: list[tuple[Facts, datetime]] = []

        def refuse(rest: PartialRead, now: datetime) -> None:
            seen.append((rest.facts, now))
            raise NotResting("chat", "streaming")

        await refused(store, "chat", store.delete("chat", refuse, actor="someone"), NotResting)
        assert seen[-1][0] == committed.facts
        assert seen[-1][1] >= committed.at
        assert await store.tombstone("chat") is None
        assert (await store.change("chat", plans.plan(plans.send("more")))).decisions

    async def test_an_id_that_is_taken_stays_taken(self, store: ChatStore) -> None:
        """By a chat that is there: the error is another, and no tombstone comes of it."""
        await plans.created(store, "chat")
        await refused(store, "chat", store.create("chat", plans.plan(plans.create())), ChatExists)

    async def test_a_list_goes_on_after_a_chat_that_was_deleted_meanwhile(self, store: ChatStore) -> None:
        """Who reads page by page holds the id of the last chat of a page, and it may be gone by then."""
        for chat_id in "abcd":
            await plans.created(store, chat_id, owner="me")
        await deleted(store, "c")
        for owner in (None, "me"):
            rest = await store.chats(owner=owner, state=None, limit=10, after="c")
            assert [one.chat_id for one in rest if isinstance(one, Facts)] == ["b", "a"]

    async def test_chats_that_rest_are_found_by_how_long_they_were_unchanged(self, store: ChatStore) -> None:
        """The longest first, archived ones apart; one that works is not found, however long it works."""
        for chat_id in "abcd":
            await plans.created(store, chat_id)
        await plans.created(store, "works", plans.send("hello"))
        await plans.created(store, "runs", plans.send("hello"), plans.claim())
        await store.change("a", plans.plan(plans.move(Renamed(title="changed last"))))
        await store.change("b", plans.plan(plans.move(Archived())))

        async def resting(*, archived: bool, seconds: float = 0, limit: int = 10) -> list[str]:
            return await store.rested(archived=archived, seconds=seconds, limit=limit)

        assert await resting(archived=False) == ["c", "d", "a"]
        assert await resting(archived=False, limit=2) == ["c", "d"]
        assert await resting(archived=True) == ["b"]
        assert await resting(archived=False, seconds=3600) == await resting(archived=True, seconds=3600) == []
        await store.change("runs", plans.plan(plans.reply("hi")))
        await store.change("c", plans.plan(plans.send("wake up")))
        await store.change("b", plans.plan(plans.move(Unarchived())))
        await deleted(store, "d")
        assert await resting(archived=False) == ["a", "runs", "b"]
        assert await resting(archived=True) == []

    async def test_a_chat_whose_parent_is_gone_is_not_created(self, store: ChatStore) -> None:
        """The deleter of the parent would never learn of it."""
        await plans.created(store, "chat")
        await deleted(store, "chat")
        for parent, kind in (("chat", ChatDeleted), ("missing", ChatNotFound)):
            late = store.create("child", plans.plan(plans.create()), parent=(parent, 1))
            assert (await failure_of(late, kind)).chat_id == parent
            await failure_of(store.facts("child"), ChatNotFound)

    async def test_forks_and_children_of_a_deleted_chat_are_known(self, store: ChatStore) -> None:
        """They name it still."""
        await plans.created(store, "chat")
        await store.create("child", plans.plan(_child_of("chat")))
        await store.create("fork", plans.plan(_child_of("chat", "1:abc")))
        await store.create("fork of a fork", plans.plan(_child_of("gone", "1:abc", "nearer", "chat")))
        await store.create("grandchild", plans.plan(_child_of("child")))
        for _ in range(2):
            assert sorted(await store.forks("chat")) == ["fork", "fork of a fork"]
            assert await store.children("chat") == ["child"]
            await deleted(store, "chat")
