"""What a store promises about a history that is rewritten: what edits and erasures take out, and what they leave."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from msgspec.structs import replace

from turnwise.persistence.audit.verify import Verdict, verify_records, verify_stored
from turnwise.persistence.protocol import ChatStore
from turnwise.states.arguments import Erasing
from turnwise.states.errors import ChatNotFound, VersionMismatch
from turnwise.states.messages import TextPart
from turnwise.states.names import ChatState
from turnwise.states.triggers import ClearContext, EditMessage, MessageErased, Renamed
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import failure_of, part
from turnwise.testing.conformance.reading import edited, texts


class RewritingConformance:
    """What is cut is out of the history and stays in the log; what is erased is nowhere."""

    async def test_a_second_edit_leaves_the_first_as_it_was(self, store: ChatStore) -> None:
        """Messages between two edits stay the history of the versions between them."""
        lived = (*plans.turn("one", "1"), *plans.turn("two", "2"), plans.move(ClearContext()))
        first = await plans.created(store, "chat", *lived)
        await edited(store, "m3", "three")
        between = (await store.facts("chat")).version
        await edited(store, "m1", "four")
        now = (await store.facts("chat")).version
        assert texts(await store.history("chat", at_version=first.facts.version)) == ["one", "1", "two", "2", "-"]
        assert texts(await store.history("chat", at_version=between)) == ["one", "1", "three"]
        assert texts(await store.history("chat", at_version=now)) == texts(await store.history("chat")) == ["four"]
        assert verify_stored("chat", await store.rows("chat")) == Verdict(ok=True)

    async def test_two_edits_of_one_plan_each_cut_at_their_own_version(self, store: ChatStore) -> None:
        """The later message first: what stood before it belongs to the history between them."""
        clear = plans.move(ClearContext())
        lived = (*plans.turn("one", "1"), clear, *plans.turn("two", "2"), clear)
        before = (await plans.created(store, "chat", *lived)).facts.version
        history = await store.history("chat")
        edits = []
        for message, text in ((history[3], "three"), (history[0], "four")):
            place = await store.cut_at("chat", message.id)
            assert place is not None
            edits.append(plans.move(EditMessage(cut=place[1], parts=(TextPart(text=text),))))
        await store.change("chat", plans.plan(*edits))
        assert texts(await store.history("chat", at_version=before)) == ["one", "1", "-", "two", "2", "-"]
        assert texts(await store.history("chat", at_version=before + 1)) == ["one", "1", "-", "three"]
        assert texts(await store.history("chat", at_version=before + 2)) == ["four"]
        assert texts(await store.history("chat")) == ["four"]
        assert verify_stored("chat", await store.rows("chat")) == Verdict(ok=True)

    async def test_an_edit_before_a_boundary_takes_the_boundary_away(self, store: ChatStore) -> None:
        """What it hid is seen again; one of two boundaries leaves the other."""
        clear = plans.move(ClearContext())
        turns = [plans.turn(asked, answered) for asked, answered in (("one", "1"), ("two", "2"), ("three", "3"))]
        await plans.created(store, "chat", *turns[0], clear, *turns[1], *turns[2], clear)
        assert texts(await store.prompt("chat")) == []
        await edited(store, "m6", "third")
        assert texts(await store.prompt("chat")) == ["two", "2", "third"]
        await edited(store, "m2", "first")
        assert texts(await store.prompt("chat")) == ["one", "first"]

    async def test_a_cut_restores_the_facts_that_stood_before_the_message(self, store: ChatStore) -> None:
        """Boundary and foldable messages are as they were when the message came."""
        stood: dict[str, tuple[int, int]] = {}
        last = await plans.created(store, "chat")
        moves = (
            *plans.turn("one", "1"),
            *plans.turn("two", "2", tokens=900),
            plans.fold("summary", 3),
            plans.start(),
            plans.reply("3"),
            plans.send("four"),
        )
        for move in moves:
            before = last.facts.history
            last = await store.change("chat", plans.plan(move))
            if move in (moves[0], moves[3], moves[-1]):
                newest = (await store.history("chat"))[-1]
                stood[newest.id] = before.boundary, before.foldable
        for message_id, expected in stood.items():
            place = await store.cut_at("chat", message_id)
            assert place is not None
            message, cut = place
            assert (message.id, cut.first_removed, cut.position) == (message_id, message_id, message.position)
            assert (cut.boundary, cut.foldable) == expected
            assert cut.history_version == last.facts.history_version
        assert len(stood) == 3  # noqa: PLR2004 - one for each turn

    async def test_a_compaction_that_was_cut_counts_for_no_later_edit(self, store: ChatStore) -> None:
        """An edit before it has taken it back: what came since folds from the beginning again."""
        await plans.created(store, "chat", *plans.turn("one", "1"), *plans.turn("two", "2", tokens=900))
        for later in (plans.fold("summary", 3), plans.start(), plans.reply("3")):
            await store.change("chat", plans.plan(later))
        (first, *_) = await store.history("chat")
        await edited(store, first.id, "one, said better")
        for later in (plans.claim(), plans.reply("1"), plans.send("two again")):
            await store.change("chat", plans.plan(later))
        history = await store.history("chat")
        assert texts(history) == ["one, said better", "1", "two again"]
        place = await store.cut_at("chat", history[-1].id)
        assert place is not None
        assert (place[1].boundary, place[1].foldable) == (0, len(history) - 1)

    async def test_what_is_not_in_the_history_cannot_be_cut(self, store: ChatStore) -> None:
        """An unknown message, and one that was cut before."""
        await plans.created(store, "chat", *plans.turn("one", "1"))
        await edited(store, "m1", "two")
        assert await store.cut_at("chat", "m1") is None
        assert await store.cut_at("chat", "m99") is None

    async def test_an_erased_message_is_blank_everywhere(self, store: ChatStore) -> None:
        """In the history and in every event that has it; their numbers and the audit chain stay as they are."""
        moves = (plans.send("look"), plans.claim(), plans.send("secret wish"))
        await plans.created(store, "chat", *moves)
        await store.append_events("chat", 1, ChatState.streaming, [part("secret "), part("thought")])
        for move in (plans.reply("secret thought", local=["secret"]), plans.finish("secret")):
            await store.change("chat", plans.plan(move))
        wished = (plans.tools_finished(), plans.reply("done"))
        for move in wished:
            await store.change("chat", plans.plan(move))
        events = await store.events("chat", after=0, limit=100)
        for message in await store.history("chat"):
            blank = replace(message, parts=(), erased=True)
            await store.change("chat", plans.plan(plans.move(MessageErased(erasing=Erasing(messages=(blank,))))))
        assert all(message.erased and not message.parts for message in await store.history("chat"))
        events_left = await store.events("chat", after=0, limit=100)
        assert "secret " not in repr(events_left)
        assert "'saw'" not in repr(events_left)
        assert {event.seq for event in events if event.kind != "part"} <= {event.seq for event in events_left}
        assert verify_records(await store.audit("chat")).ok

    async def test_a_chat_that_repeats_what_was_erased_meanwhile_is_not_created(self, store: ChatStore) -> None:
        """Other changes of its parent are no obstacle, nor is what was erased before it was read."""
        await plans.created(store, "chat", plans.send("secret"))
        (message,) = await store.history("chat")
        read_at = (await store.facts("chat")).version
        await store.change("chat", plans.plan(plans.move(Renamed(title="a title"))))
        await store.create("first", plans.plan(plans.create()), parent=("chat", read_at))
        erase = MessageErased(erasing=Erasing(messages=(replace(message, parts=(), erased=True),)))
        erased_at = (await store.change("chat", plans.plan(plans.move(erase)))).facts.version
        late = store.create("second", plans.plan(plans.create()), parent=("chat", read_at))
        refusal = await failure_of(late, VersionMismatch)
        assert (refusal.chat_id, refusal.if_version, refusal.version) == ("chat", read_at, erased_at)
        await failure_of(store.facts("second"), ChatNotFound)
        await store.create("second", plans.plan(plans.create()), parent=("chat", erased_at))

    async def test_a_chat_that_is_for_its_parent_as_it_stands_is_not_created_once_that_has_changed(
        self, store: ChatStore
    ) -> None:
        """A subagent is started only for a chat that still waits for it."""
        read_at = (await plans.created(store, "chat")).facts.version
        await store.create("first", plans.plan(plans.create()), parent=("chat", read_at), unchanged=True)
        changed = await store.change("chat", plans.plan(plans.move(Renamed(title="a title"))))
        late = store.create("second", plans.plan(plans.create()), parent=("chat", read_at), unchanged=True)
        refusal = await failure_of(late, VersionMismatch)
        assert (refusal.chat_id, refusal.if_version, refusal.version) == ("chat", read_at, changed.facts.version)
        await failure_of(store.facts("second"), ChatNotFound)

    async def test_an_erasure_that_is_decided_with_something_else_is_done(self, store: ChatStore) -> None:
        """Also with other decisions before and after it in the same transaction."""
        await plans.created(store, "chat", plans.send("secret"))
        (message,) = await store.history("chat")
        erase = MessageErased(erasing=Erasing(messages=(replace(message, parts=(), erased=True),)))
        moves = (plans.move(Renamed(title="before")), plans.move(erase), plans.move(Renamed(title="after")))
        await store.change("chat", plans.plan(*moves))
        assert [(blank.id, blank.parts, blank.erased) for blank in await store.history("chat")] == [
            (message.id, (), True)
        ]
        assert "secret" not in repr(await store.events("chat", after=0, limit=100))
        assert (await store.facts("chat")).profile.title == "after"
        assert verify_stored("chat", await store.rows("chat")) == Verdict(ok=True)
