"""What a store promises about changing chats."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

import anyio
from msgspec.structs import replace

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.protocol import ChatStore, Committed, DuplicateReceipt, Plan
from turnwise.states.decide import Decision
from turnwise.states.errors import ChatNotFound, IllegalTransition, StoreError
from turnwise.states.events import PartEvent
from turnwise.states.facts import Facts
from turnwise.states.messages import TextPart
from turnwise.states.names import ChatState
from turnwise.states.triggers import CallStarted, EditQueued, Interrupt, Renamed, Settled
from turnwise.states.writes import InsertBoundary
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import failure_of, part, refused


class ChangingConformance:
    """One change is one transaction: all of it or nothing, numbered without gaps."""

    async def test_facts_are_read_as_they_were_decided(self, store: ChatStore) -> None:
        """Calls, queue, lease and usage of a long life come back equal."""
        life = [
            plans.send("look twice", client_id="c1"),
            plans.claim(),
            plans.reply("I look.", local=["a", "b"], client=["c"]),
            plans.send("and then?"),
            plans.move(CallStarted(token=plans.HOLDER, call_id="a")),
            plans.finish("b"),
            plans.finish("a"),
            plans.tools_finished(),
            plans.submit("c"),
            plans.claim(),
            plans.reply("Seen.", tokens=900),
            plans.fold("They looked."),
            plans.move(Interrupt(), reason="enough"),
            plans.move(Settled(token=plans.HOLDER)),
        ]
        committed = await store.create("chat", plans.plan(plans.create("owner")))
        for move in life:
            assert await store.facts("chat") == committed.facts
            committed = await store.change("chat", plans.plan(move))
            assert committed.facts == committed.decisions[-1].facts
        assert await store.facts("chat") == committed.facts
        assert committed.facts.version == len(life) + 1

    async def test_calls_of_a_turn_that_is_over_do_not_come_back(self, store: ChatStore) -> None:
        """A new turn starts without calls, although no new step has started."""
        stopped = (plans.move(Interrupt()), plans.move(Settled(token=plans.HOLDER)), plans.send("again"))
        committed = await plans.created(
            store, "chat", plans.send("look"), plans.claim(), plans.reply("", client=["c"]), *stopped
        )
        assert committed.facts.calls == ()
        assert (await store.facts("chat")).calls == ()

    async def test_a_queue_is_read_in_the_order_in_which_it_waits(self, store: ChatStore) -> None:
        """Also where messages came after others were taken, and where the first and the last of them were edited."""
        await plans.created(store, "chat", plans.send("hello"), plans.claim())
        for text in ("one", "two", "three"):
            await store.change("chat", plans.plan(plans.send(text)))
        for _ in range(2):
            await store.change("chat", plans.plan(plans.reply("so"), plans.claim()))
        await store.change("chat", plans.plan(plans.send("four"), plans.send("five")))
        head, _, last = (await store.facts("chat")).queue
        for queued, text in ((head, "3"), (last, "5")):
            edit = plans.move(EditQueued(queued_id=queued.id, parts=(TextPart(text=text),)))
            committed = await store.change("chat", plans.plan(edit))
        assert [queued.text for queued in (await store.facts("chat")).queue] == ["3", "four", "5"]
        assert (await store.facts("chat")).queue == committed.facts.queue
        assert committed.facts.queue[0].accepted_at == head.accepted_at

    async def test_an_id_is_given_once(self, store: ChatStore) -> None:
        """The second chat of an id is refused and the first stays as it is."""
        await plans.created(store, "chat", plans.send("first"))
        error = await refused(store, "chat", store.create("chat", plans.plan(plans.create())), StoreError)
        assert "chat" in error.problem

    async def test_a_chat_that_was_never_created_is_not_found(self, store: ChatStore) -> None:
        """Neither to read nor to change."""
        for call in (
            store.facts("missing"),
            store.change("missing", plans.idle),
            store.append_events("missing", 1, ChatState.streaming, []),
        ):
            assert (await failure_of(call, ChatNotFound)).chat_id == "missing"

    async def test_a_plan_that_raises_writes_nothing(self, store: ChatStore) -> None:
        """A refusal after a decision that was legal takes the first decision with it."""
        await plans.created(store, "chat")
        illegal = plans.plan(plans.send("hello"), plans.tools_finished())
        await refused(store, "chat", store.change("chat", illegal, shown=[part("unseen")]), IllegalTransition)

    async def test_what_a_plan_raises_reaches_the_caller(self, store: ChatStore) -> None:
        """As it is, even when it is no error of turnwise."""

        def broken(facts: Facts, now: datetime) -> NoReturn:
            raise LookupError(facts.chat_id, now)

        await plans.created(store, "chat")
        assert (await failure_of(store.change("chat", broken), LookupError)).args[0] == "chat"

    async def test_a_plan_that_decides_nothing_writes_nothing(self, store: ChatStore) -> None:
        """Not even the parts that were to precede the decision's events."""
        before = await plans.created(store, "chat")
        committed = await store.change("chat", plans.idle, shown=[part("unseen")])
        assert (committed.facts, committed.decisions, committed.events) == (before.facts, (), ())
        assert await store.events("chat", after=0, limit=100) == list(before.events)

    async def test_decisions_of_one_plan_share_a_commit(self, store: ChatStore) -> None:
        """Each keeps its own version and its own audit record."""
        await plans.created(store, "chat")
        committed = await store.change("chat", plans.plan(*plans.turn("hello", "hi")))
        assert [decision.facts.version for decision in committed.decisions] == [2, 3, 4]
        assert committed.facts.state is ChatState.waiting
        records = await store.audit("chat")
        assert [record.version for record in records] == [1, 2, 3, 4]
        assert verify_records(records).ok

    async def test_shown_parts_come_before_the_events_of_the_decision(self, store: ChatStore) -> None:
        """With chat, number and time like every event."""
        last = await plans.created(store, "chat", plans.send("hello"), plans.claim())
        committed = await store.change("chat", plans.plan(plans.reply("hi")), shown=[part("h"), part("i")])
        first, second, *others = committed.events
        assert isinstance(first, PartEvent)
        assert isinstance(second, PartEvent)
        assert [first.part.delta, second.part.delta] == ["h", "i"]
        assert all(event.chat_id == "chat" and event.at == committed.at for event in committed.events)
        assert others
        assert await store.events("chat", after=last.events[-1].seq, limit=100) == list(committed.events)

    async def test_a_commit_returns_what_it_was_decided_on(self, store: ChatStore) -> None:
        """Whether it decided something or not, on a chat that is new, held or without a lease."""
        bases: list[tuple[Facts, datetime]] = []

        def noting(*moves: plans.Move) -> Plan:
            def noted(facts: Facts, now: datetime) -> Sequence[Decision]:
                bases.append((facts, now))
                return plans.plan(*moves)(facts, now)

            return noted

        def check(committed: Committed, version: int) -> None:
            assert (committed.before, committed.at) == bases[-1]
            assert committed.before.version == version

        check(await store.create("chat", noting(plans.create())), 0)
        check(await store.change("chat", noting(plans.send("hello"), plans.send("again"))), 1)
        check(await store.change("chat", noting()), 3)
        (claimed,) = await store.claim(noting(plans.claim()), runs=plans.RUNS, limit=1)
        check(claimed, 3)
        check(await store.change("chat", noting()), 4)
        check(await store.change("chat", noting(plans.reply("hi")), shown=[part("hi")]), 4)
        check(await store.repair("chat", noting(plans.move(Renamed(title="sound")))), 5)
        check(await store.repair("chat", noting()), 6)
        check(await store.create("other", noting()), 0)

    async def test_a_client_id_gets_one_receipt(self, store: ChatStore) -> None:
        """The second message of that id is refused whole, although its message was new."""
        await plans.created(store, "chat", plans.send("hello", client_id="c1"))
        again = plans.plan(plans.send("hello", client_id="c1"))
        change = store.change("chat", again, shown=[part("unseen")])
        error = await refused(store, "chat", change, DuplicateReceipt)
        assert (error.chat_id, error.client_id) == ("chat", "c1")
        assert all(words in str(error) for words in ("'chat'", "'c1'", "nothing was written"))
        await plans.created(store, "other", plans.send("hello", client_id="c1"))

    async def test_a_step_is_compacted_once(self, store: ChatStore) -> None:
        """A plan that decides a second boundary for the step, against the guards, is refused whole."""
        await plans.created(store, "chat", *plans.turn("hello", "hi", tokens=900), plans.fold("Greetings."))

        def again(facts: Facts, now: datetime) -> Sequence[Decision]:
            decision = plans.move(Renamed(title="again"))(facts, now)
            boundary = InsertBoundary("compaction", facts.compaction.step, facts.history.length + 1, ())
            return [replace(decision, writes=(*decision.writes, boundary))]

        await refused(store, "chat", store.change("chat", again), StoreError)

    async def test_concurrent_changes_follow_one_another(self, store: ChatStore) -> None:
        """Fifty at once: no version twice, none left out, no event lost, an audit chain without a break."""
        await plans.created(store, "chat")
        versions: list[int] = []

        async def rename(title: str) -> None:
            committed = await store.change("chat", plans.plan(plans.move(Renamed(title=title))))
            versions.append(committed.facts.version)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(rename, str(number))
        assert sorted(versions) == list(range(2, 52))
        assert verify_records(await store.audit("chat")).ok
        assert (await store.facts("chat")).version == 51  # noqa: PLR2004 - as above

    async def test_a_refused_change_harms_no_other(self, store: ChatStore) -> None:
        """Of changes that reach the store together each succeeds or fails for itself."""
        await plans.created(store, "good")
        await plans.created(store, "bad", plans.send("hello", client_id="c1"))
        failures: list[DuplicateReceipt] = []

        async def change(chat_id: str, move: plans.Move) -> None:
            try:
                await store.change(chat_id, plans.plan(move))
            except DuplicateReceipt as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(change, "good", plans.move(Renamed(title=str(number))))
                tasks.start_soon(change, "bad", plans.send("hello", client_id="c1"))
        assert {error.client_id for error in failures} == {"c1"}
        assert len(failures) == 10  # noqa: PLR2004 - one for each
        assert (await store.facts("good")).version == 11  # noqa: PLR2004 - created and changed ten times
        assert len(await store.history("bad")) == 1

    async def test_a_cancelled_change_is_whole_or_never_happened(self, store: ChatStore) -> None:
        """Cancelled in any phase, what is committed is complete and the store goes on."""
        await plans.created(store, "chat")
        for rounds in range(1, 8):
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    title = plans.move(Renamed(title=str(number)))
                    tasks.start_soon(store.change, "chat", plans.plan(title, title))
                for _ in range(rounds):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        committed = await store.change("chat", plans.plan(plans.move(Renamed(title="last"))))
        records = await store.audit("chat")
        assert committed.facts.version == len(records)
        assert len(records) % 2 == 0
        assert verify_records(records).ok
