"""What a store promises about reading chats."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from decimal import Decimal

from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.reading import PAGE_BYTES
from turnwise.states.errors import ChatNotFound
from turnwise.states.events import ToolProgressEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, TextPart
from turnwise.states.names import Answerer, Audience, CallStatus, ChatState
from turnwise.states.triggers import Archived, ClearContext, Configured, EditMessage, Renamed, Unarchived
from turnwise.states.usage import Usage
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import failure_of, part


def texts(messages: list[Message]) -> list[str]:
    """Return the text of each message, or the call whose result it holds."""
    return [message.text or (message.result.call_id if message.result else "-") for message in messages]


async def edited(store: ChatStore, message_id: str, text: str) -> None:
    place = await store.cut_at("chat", message_id)
    assert place is not None
    parts = (TextPart(text=text),)
    await store.change("chat", plans.plan(plans.move(EditMessage(cut=place[1], parts=parts))))


class ReadingConformance:
    """Every view is made of the same rows, now and as they were."""

    async def test_the_history_is_what_was_said_and_not_cut(self, store: ChatStore) -> None:
        """By position; a cut message is gone from now on, and stays in the history as of earlier versions."""
        first = await plans.created(store, "chat", *plans.turn("one", "1"))
        before = await plans.created(store, "other", *plans.turn("unrelated", "-"))
        assert before.facts.version == first.facts.version
        for move in plans.turn("two", "2"):
            before = await store.change("chat", plans.plan(move))
        await edited(store, "m3", "three")
        now = (await store.facts("chat")).version
        assert texts(await store.history("chat")) == ["one", "1", "three"]
        assert texts(await store.history("chat", at_version=now)) == ["one", "1", "three"]
        assert texts(await store.history("chat", after=1)) == ["1", "three"]
        assert texts(await store.history("chat", at_version=before.facts.version, after=2)) == ["two", "2"]
        assert texts(await store.history("chat", at_version=before.facts.version)) == ["one", "1", "two", "2"]
        assert texts(await store.history("chat", at_version=first.facts.version)) == ["one", "1"]
        assert await store.history("chat", at_version=1) == []

    async def test_the_facts_hold_the_number_of_the_last_event(self, store: ChatStore) -> None:
        """As committed and as read, with what a holder appends, and what is shown with a commit."""
        committed = await plans.created(store, "chat", plans.send("hello"), plans.claim())
        assert committed.facts.last_seq == len(await store.events("chat", after=0, limit=100))
        await store.append_events("chat", 1, ChatState.streaming, [part("h"), part("i")])
        last_seq = (await store.facts("chat")).last_seq
        assert last_seq == len(await store.events("chat", after=0, limit=100)) == committed.facts.last_seq + 2
        committed = await store.change("chat", plans.plan(plans.reply("hi!")), shown=[part("!")])
        events = await store.events("chat", after=0, limit=100)
        assert committed.facts.last_seq == (await store.facts("chat")).last_seq == events[-1].seq == len(events)
        listed = await store.chats(owner=None, state=None, limit=10, after=None)
        assert [chat.last_seq for chat in listed if isinstance(chat, Facts)] == [len(events)]

    async def test_a_receipt_holds_the_number_before_its_message(self, store: ChatStore) -> None:
        """Also where events were appended since the last commit, and where the message waits."""
        created = await plans.created(store, "chat")
        await store.change("chat", plans.plan(plans.send("one", client_id="a")))
        await store.change("chat", plans.plan(plans.claim()))
        parts = await store.append_events("chat", 1, ChatState.streaming, [part("h"), part("i")])
        await store.change("chat", plans.plan(plans.send("two", client_id="b")))
        first, second = await store.receipt("chat", "a"), await store.receipt("chat", "b")
        assert first is not None
        assert second is not None
        assert (first.seq, second.seq) == (created.facts.last_seq, parts[-1].seq)

    async def test_a_snapshot_is_all_of_one_moment(self, store: ChatStore) -> None:
        """Facts, history, and what is shown of the attempt under way, but not of one that is over."""
        await plans.created(store, "chat", *plans.turn("one", "1"), plans.send("two"), plans.claim())
        await store.append_events("chat", 2, ChatState.streaming, [part("2", step=2)])
        taken = await store.snapshot("chat")
        assert taken.facts == await store.facts("chat")
        assert texts(list(taken.history)) == ["one", "1", "two"]
        assert [event.part.delta for event in taken.shown] == ["2"]
        assert taken.stop_reason == "end_turn"
        await failure_of(store.snapshot("missing"), ChatNotFound)

    async def test_the_model_sees_results_in_the_order_of_their_calls(self, store: ChatStore) -> None:
        """However they finished; the history keeps the order in which they came."""
        await plans.created(
            store,
            "chat",
            plans.send("look"),
            plans.claim(),
            plans.reply("I look.", local=["a", "b"]),
            plans.finish("b"),
            plans.finish("a"),
        )
        assert texts(await store.history("chat")) == ["look", "I look.", "b", "a"]
        assert texts(await store.prompt("chat")) == ["look", "I look.", "a", "b"]

    async def test_after_a_compaction_the_model_sees_summary_carried_and_later_messages(self, store: ChatStore) -> None:
        """The marker is the user's alone; the transcript keeps all of it."""
        await plans.created(store, "chat", *plans.turn("one", "1"), *plans.turn("two", "2", tokens=900))
        await store.change("chat", plans.plan(plans.fold("summary", 3)))
        await store.change("chat", plans.plan(plans.start()))
        await store.change("chat", plans.plan(plans.reply("3")))
        assert texts(await store.prompt("chat")) == ["summary", "two", "3"]
        history = await store.history("chat")
        assert texts(history) == ["one", "1", "two", "2", "-", "summary", "3"]
        assert [message.audience for message in history[4:6]] == [Audience.user, Audience.model]
        assert [message.position for message in history] == [1, 2, 3, 4, 5, 6, 7]

    async def test_after_a_compaction_the_model_sees_what_it_made_in_its_order(self, store: ChatStore) -> None:
        """New messages stand where they were put among those that stay; an edit afterwards counts what it leaves."""
        await plans.created(store, "chat", *plans.turn("one", "1"), *plans.turn("two", "2", tokens=900))
        await store.change("chat", plans.plan(plans.fold(3, "new", 1, "newer")))
        assert texts(await store.prompt("chat")) == ["two", "new", "one", "newer"]
        await store.change("chat", plans.plan(plans.start()))
        await store.change("chat", plans.plan(plans.reply("3")))
        await store.change("chat", plans.plan(plans.send("four")))
        assert texts(await store.prompt("chat")) == ["two", "new", "one", "newer", "3", "four"]
        place = await store.cut_at("chat", (await store.history("chat"))[-1].id)
        assert place is not None
        assert (place[0].text, place[1].foldable) == ("four", 3)

    async def test_a_compaction_may_leave_nothing_but_what_stays(self, store: ChatStore) -> None:
        """A window that slides puts no summary before what comes after it."""
        await plans.created(store, "chat", *plans.turn("one", "1"), *plans.turn("two", "2", tokens=900))
        for later in (plans.fold(3, 4), plans.start(), plans.reply("3")):
            await store.change("chat", plans.plan(later))
        assert texts(await store.prompt("chat")) == ["two", "2", "3"]

    async def test_after_clearing_the_model_sees_what_came_after(self, store: ChatStore) -> None:
        """A boundary without a summary."""
        cleared = (*plans.turn("one", "1"), plans.move(ClearContext()))
        await plans.created(store, "chat", *cleared, *plans.turn("two", "2"))
        assert texts(await store.prompt("chat")) == ["two", "2"]

    async def test_events_are_read_as_they_were_stored(self, store: ChatStore) -> None:
        """Every kind, to the last field: later readers see exactly what live subscribers saw."""
        events = [*(await store.create("chat", plans.plan(plans.create()))).events]
        moves = (plans.send("look"), plans.claim(), plans.send("later"))
        answered = (plans.reply("I look.", local=["a", "b"], client=["c"]), plans.finish("b"), plans.finish("a"))
        rest = (
            plans.tools_finished(),
            plans.submit("c"),
            plans.claim(),
            plans.reply("Seen.", tokens=800),
        )
        for move in moves:
            events += (await store.change("chat", plans.plan(move))).events
        events += await store.append_events("chat", 1, ChatState.streaming, [part("I "), part("look.")])
        events += (await store.change("chat", plans.plan(answered[0]))).events
        progress = ToolProgressEvent(step=1, call_id="a", progress=None)
        events += await store.append_events("chat", 1, ChatState.executing_tools, [progress])
        for move in (*answered[1:], *rest):
            events += (await store.change("chat", plans.plan(move))).events
        assert {"message", "status", "part", "queue", "tool_result", "action_required"} <= {
            event.kind for event in events
        }
        assert await store.events("chat", after=0, limit=100) == events

    async def test_every_call_is_remembered(self, store: ChatStore) -> None:
        """Those of earlier steps too, with their answers; unknown ids are left out."""
        moves = (plans.send("look"), plans.claim(), plans.reply("", client=["c"]), plans.submit("c"))
        await plans.created(store, "chat", *moves, plans.claim(), plans.reply("Seen."))
        calls = await store.calls("chat", ["c", "nothing"])
        assert list(calls) == ["c"]
        assert calls["c"].status is CallStatus.succeeded
        assert calls["c"].answer is not None
        assert await store.calls("chat", []) == {}

    async def test_a_receipt_is_found_by_its_client_id(self, store: ChatStore) -> None:
        """Of its own chat only."""
        await plans.created(store, "chat", plans.send("hello", client_id="c1"), plans.send("more", client_id="c2"))
        await plans.created(store, "other")
        first, second = await store.receipt("chat", "c1"), await store.receipt("chat", "c2")
        assert first is not None
        assert second is not None
        assert (first.message_id, first.queued) == ("m1", False)
        assert (second.message_id, second.queued) == ("m2", True)
        assert await store.receipt("other", "c1") is None

    async def test_the_ledger_has_every_model_call(self, store: ChatStore) -> None:
        """In order, with its purpose."""
        naming = plans.move(Renamed(title="One", usage=Usage(input_tokens=3, cost=Decimal("0.10"))))
        await plans.created(store, "chat", *plans.turn("one", "1", tokens=900), plans.fold("summary"), naming)
        ledger, facts = await store.ledger("chat"), await store.facts("chat")
        spent = [(entry.purpose, entry.turn, entry.usage.input_tokens) for entry in ledger]
        assert spent == [("step", 1, 900), ("summary", 1, 7), ("title", 0, 3)]
        assert (facts.usage.input_tokens, facts.titled, facts.profile.title) == (910, True, "One")
        assert (ledger[-1].usage.cost, facts.usage.cost_partial) == (Decimal("0.10"), True)

    async def test_a_page_of_events_is_bounded_by_bytes(self, store: ChatStore) -> None:
        """An event of any size fits into a page; those behind it follow in the next."""
        large = [plans.send(f"{number}" * PAGE_BYTES) for number in range(3)]
        await plans.created(store, "chat", plans.send("hello"), *large)
        first = await store.events("chat", after=0, limit=100)
        assert first.more
        assert (first[-1].kind, first[-1].ids) == ("queue", ("m2",))  # type: ignore[union-attr]
        events = [*first]
        while (page := await store.events("chat", after=events[-1].seq, limit=100)).more:
            assert len(page) == 1
            events += page
        assert [event.seq for event in (*events, *page)] == [*range(1, (await store.facts("chat")).last_seq + 1)]

    async def test_a_page_of_messages_is_bounded_by_bytes(self, store: ChatStore) -> None:
        """A message of any size fits into a page; those behind it follow in the next, as of the same version."""
        await plans.created(store, "chat", *plans.turn("one", "1" * 1000), *plans.turn("two", "2"))
        version = (await store.facts("chat")).version
        await store.change("chat", plans.plan(plans.send("three")))
        pages = [await store.history("chat", at_version=version, size=1000)]
        while pages[-1]:
            pages.append(await store.history("chat", at_version=version, after=pages[-1][-1].position, size=1000))
        assert [texts(page) for page in pages] == [["one", "1" * 1000], ["two", "2"], []]
        assert texts([*(await store.snapshot("chat", size=1)).history]) == ["one"]

    async def test_events_are_numbered_without_gaps_and_read_in_pages(self, store: ChatStore) -> None:
        """Transitions and appended events share one sequence."""
        await plans.created(store, "chat", plans.send("hello"), plans.claim())
        await store.append_events("chat", 1, ChatState.streaming, [part("h"), part("i")])
        await store.change("chat", plans.plan(plans.reply("hi")))
        events = await store.events("chat", after=0, limit=100)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert await store.events("chat", after=2, limit=3) == events[2:5]
        assert await store.events("chat", after=len(events), limit=3) == []

    async def test_the_parts_shown_of_an_attempt_are_found(self, store: ChatStore) -> None:
        """Of that attempt only, also if other events come between them."""
        await plans.created(store, "chat", plans.send("hello"), plans.claim())
        await store.append_events("chat", 1, ChatState.streaming, [part("h")])
        await store.change("chat", plans.plan(plans.move(Renamed(title="Greeting"))))
        await store.append_events("chat", 1, ChatState.streaming, [part("i"), part("x", attempt=2)])
        assert [event.part.delta for event in await store.shown("chat", 1, 1)] == ["h", "i"]
        assert [event.part.delta for event in await store.shown("chat", 1, 2)] == ["x"]
        assert await store.shown("chat", 2, 1) == []

    async def test_chats_are_listed_newest_first(self, store: ChatStore) -> None:
        """By owner, by state, and from where the last page ended."""
        for chat_id, owner in (("a", "ann"), ("b", "bob"), ("c", "ann"), ("d", None)):
            await plans.created(store, chat_id, owner=owner)
        await store.change("a", plans.plan(plans.send("hello")))

        async def listed(owner: str | None, state: ChatState | None, limit: int, after: str | None) -> str:
            page = await store.chats(owner=owner, state=state, limit=limit, after=after)
            return "".join(facts.chat_id for facts in page if isinstance(facts, Facts))

        assert await listed(None, None, 10, None) == "dcba"
        assert await listed("ann", None, 10, None) == "ca"
        assert await listed(None, ChatState.waiting, 10, None) == "dcb"
        assert await listed(None, None, 2, None) == "dc"
        assert await listed(None, None, 2, "c") == "ba"

    async def test_chats_are_listed_by_whom_they_wait_for(self, store: ChatStore) -> None:
        """The client, subagents or both; as it is after each answer, for every owner, and never in another state."""
        replies = {
            "a": plans.reply("so", client="x"),
            "b": plans.reply("so", delegated="yz"),
            "c": plans.reply("so", client="x", delegated="y"),
        }
        for chat_id, reply in replies.items():
            moves = (plans.send("hello"), plans.claim(), reply)
            await plans.created(store, chat_id, *moves, owner="ann" if chat_id == "c" else None)
        await plans.created(store, "d", *plans.turn("one", "1"))

        async def listed(awaiting: Answerer, owner: str | None = None, after: str | None = None) -> str:
            page = await store.chats(owner=owner, state=None, limit=10, after=after, awaiting=awaiting)
            return "".join(facts.chat_id for facts in page if isinstance(facts, Facts))

        assert (await listed("client"), await listed("subagents")) == ("ca", "cb")
        assert (await listed("client", owner="ann"), await listed("subagents", after="c")) == ("c", "b")
        assert await store.awaiting_subagents(after="", limit=10) == ["b", "c"]
        assert await store.awaiting_subagents(after="b", limit=10) == ["c"]
        assert await store.awaiting_subagents(after="gone", limit=10) == ["b", "c"]
        assert await store.awaiting_subagents(after="", limit=1) == ["b"]
        await store.change("b", plans.plan(plans.help_with("y")))
        await store.change("c", plans.plan(plans.submit("x")))
        assert (await listed("client"), await listed("subagents")) == ("a", "cb")
        await store.change("b", plans.plan(plans.help_with("z")))
        await store.change("a", plans.plan(plans.move(Archived())))
        assert (await listed("client"), await listed("subagents")) == ("", "c"), "no client can answer an archived chat"
        await store.change("a", plans.plan(plans.move(Unarchived())))
        assert (await listed("client"), await listed("subagents")) == ("a", "c")
        await store.change("c", plans.plan(plans.help_with("y")))
        assert await store.awaiting_subagents(after="", limit=10) == []
        assert (await store.facts("c")).state is ChatState.pending

    async def test_a_chat_that_waits_for_its_client_and_is_archived_has_no_subagents_looked_after(
        self, store: ChatStore
    ) -> None:
        """Its subagents answer once it is opened again."""
        moves = (plans.send("hello"), plans.claim(), plans.reply("so", client="x", delegated="y"))
        await plans.created(store, "chat", *moves)
        assert await store.awaiting_subagents(after="", limit=10) == ["chat"]
        await store.change("chat", plans.plan(plans.move(Archived())))
        assert await store.awaiting_subagents(after="", limit=10) == []
        assert await store.chats(owner=None, state=None, limit=10, after=None, awaiting="subagents") == []

    async def test_who_waits_for_a_worker_is_known_by_agent(self, store: ChatStore) -> None:
        """Since when the one that waits longest does; no other: no chat at rest, under way or archived."""
        assert (await store.waiting_since()).since == {}
        await plans.created(store, "rests", *plans.turn("one", "1"))
        await plans.created(store, "runs", plans.send("hello"), plans.claim())
        for chat_id in ("first", "second"):
            await plans.created(store, chat_id, plans.send("hello"))
        moved = plans.move(Configured(agent="research"))
        await plans.created(store, "third", moved, plans.send("hello"))
        since = {chat_id: (await store.facts(chat_id)).since for chat_id in ("first", "third")}
        assert (await store.waiting_since()).since == {"default": since["first"], "research": since["third"]}
        await store.claim(plans.plan(plans.claim()), runs={"research": ()}, limit=1)
        assert (await store.waiting_since()).since == {"default": since["first"]}

    async def test_a_head_is_the_version_and_hash_of_the_last_record(self, store: ChatStore) -> None:
        """As the log has it; of a chat that there is not, nothing."""
        await plans.created(store, "chat", *plans.turn("one", "1"))
        last = (await store.audit("chat"))[-1]
        assert await store.head("chat") == (last.version, last.hash)
        await failure_of(store.head("missing"), ChatNotFound)

    async def test_ids_are_found_by_how_they_begin(self, store: ChatStore) -> None:
        """The most recent change of state first; wildcards of SQL have no special meaning in a prefix."""
        for chat_id in ("ab", "a%", "a_", "b\U0010fffe", "ba"):
            await plans.created(store, chat_id)
        await store.change("ab", plans.plan(plans.send("hello")))
        await store.change("ba", plans.plan(plans.move(Renamed(title="Labels are no life"))))
        assert await store.ids(prefix="", limit=10) == ["ab", "ba", "b\U0010fffe", "a_", "a%"]
        assert await store.ids(prefix="", limit=2) == ["ab", "ba"]
        assert await store.ids(prefix="a", limit=10) == ["ab", "a_", "a%"]
        assert await store.ids(prefix="a%", limit=10) == ["a%"]
        assert await store.ids(prefix="ab", limit=10) == ["ab"]
        assert await store.ids(prefix="c", limit=10) == []

    async def test_ids_are_found_by_whose_the_chats_are(self, store: ChatStore) -> None:
        """As by how they begin: the most recent change of state first, and of others none."""
        for chat_id, owner in (("a", "ada"), ("b", "bob"), ("ab", "ada"), ("n", None)):
            await plans.created(store, chat_id, owner=owner)
        await store.change("a", plans.plan(plans.send("hello")))
        assert await store.ids(prefix="", limit=10, owner="ada") == ["a", "ab"]
        assert await store.ids(prefix="", limit=1, owner="ada") == ["a"]
        assert await store.ids(prefix="ab", limit=10, owner="ada") == ["ab"]
        assert await store.ids(prefix="b", limit=10, owner="ada") == []
        assert await store.ids(prefix="", limit=10, owner="eve") == []
