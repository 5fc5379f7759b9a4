"""What a store promises about leases: who may work on a chat, and when leases and deadlines run out."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from turnwise.persistence.audit.verify import verify_records
from turnwise.persistence.protocol import ChatStore, Committed
from turnwise.persistence.shares import Caps, Shares
from turnwise.states.decide import Decision
from turnwise.states.errors import StaleLease, StoreError
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.model_errors import REPAIRED
from turnwise.states.names import ChatState
from turnwise.states.triggers import (
    Archived,
    Configured,
    DeadlinePassed,
    Interrupt,
    LeaseExpired,
    Released,
    Renamed,
    Repaired,
    Settled,
)
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import contents, failure_of, part, refused

_RELEASED = Released(token=plans.HOLDER)


async def _stray(store: ChatStore, chat_id: str, state: str = "dreaming") -> None:
    def lose(facts: Facts, now: datetime) -> Sequence[Decision]:
        decision = plans.move(Renamed(title="lost"))(facts, now)
        return [replace(decision, facts=replace(decision.facts, stored_state=state))]

    await plans.created(store, chat_id)
    await store.change(chat_id, lose)


class HoldingConformance:
    """One holder at a time: the token is the fence."""

    async def test_chats_are_claimed_longest_waiting_first(self, store: ChatStore) -> None:
        """Up to the limit, and each once; what leaves the state as it is costs a chat no place."""
        for chat_id in ("a", "b", "c"):
            await plans.created(store, chat_id)
        for chat_id in ("b", "c", "a"):
            await store.change(chat_id, plans.plan(plans.send("hello")))
        await store.change("b", plans.plan(plans.move(Renamed(title="still waiting"))))
        first = await store.claim(plans.plan(plans.claim()), runs=plans.RUNS, limit=2)
        second = await store.claim(plans.plan(plans.claim()), runs=plans.RUNS, limit=2)
        assert [[claimed.facts.chat_id for claimed in claim] for claim in (first, second)] == [["b", "c"], ["a"]]
        assert await store.claim(plans.plan(plans.claim()), runs=plans.RUNS, limit=2) == []

    async def test_fair_claims_go_round_within_caps(self, store: ChatStore) -> None:
        """The longest waiting chat of each key in turn; what has to settle comes first, and no cap holds it up."""
        for chat_id, owner in (("a1", "ann"), ("a2", "ann"), ("a3", "ann"), ("b1", "bob"), ("none", None)):
            await plans.created(store, chat_id, plans.send("hello"), owner=owner)
        shares = Shares({"ann": 1}, Caps(per_key=2))

        async def claimed() -> list[str]:
            commits = await store.claim(plans.plan(plans.claim()), runs=plans.RUNS, limit=9, shares=shares)
            return [committed.facts.chat_id for committed in commits]

        assert await claimed() == ["none", "a1", "b1", "a2"]
        assert sorted(row.chats for row in await store.at_work()) == [1, 1, 2]
        for chat_id in ("a3", "b1"):
            await store.change(chat_id, plans.plan(plans.move(Interrupt())))
        assert await claimed() == ["a3"]
        assert sorted(row.chats for row in await store.at_work()) == [1, 2], "what settles is not at work"

    async def test_only_chats_that_want_a_worker_are_claimed(self, store: ChatStore) -> None:
        """Pending ones, and interrupted ones that are unsettled and unleased; none that rests or is held."""
        await plans.created(store, "resting")
        await plans.created(store, "held", plans.send("hello"), plans.claim("other"))
        await plans.created(store, "stopped", plans.send("hello"), plans.move(Interrupt()))
        await plans.created(
            store,
            "settled",
            plans.send("hello"),
            plans.move(Interrupt()),
            plans.claim(),
            plans.move(Settled(token=plans.HOLDER)),
        )
        await plans.created(store, "stopping", plans.send("hello"), plans.claim("other"), plans.move(Interrupt()))
        claimable: list[str] = []

        def asking(facts: Facts, now: datetime) -> Sequence[Decision]:
            claimable.append(facts.chat_id)
            return plans.plan(plans.claim())(facts, now)

        claimed = await store.claim(asking, runs=plans.RUNS, limit=10)
        assert [committed.facts.chat_id for committed in claimed] == ["stopped"]
        assert set(claimable) == {"stopped"}, "the plan is not even asked about the others"

    async def test_chats_are_claimed_by_those_who_run_them(self, store: ChatStore) -> None:
        """The agent is the one that asked for an open local call, whose tool counts, or that the chat has."""
        moves = (plans.claim(lease=0), plans.reply("", local=["one", "two"]), plans.move(_RELEASED))
        await plans.created(store, "acts", plans.send("hello"), *moves)
        await plans.created(store, "asks", plans.send("hello"), agent="support")
        await plans.created(store, "left", plans.send("hello"), *moves, plans.move(Configured(agent="support")))
        await plans.created(store, "moved", plans.send("hello"), plans.move(Configured(agent="support")))
        await plans.created(store, "plain", plans.send("hello"))
        stopped = (plans.send("hello"), plans.claim(), plans.move(Interrupt()), plans.move(_RELEASED))
        await plans.created(store, "stops", *stopped, agent="gone")

        async def claimed(**runs: tuple[str, ...]) -> list[str]:
            commits = await store.claim(plans.plan(plans.claim()), runs=runs, limit=9)
            return [committed.facts.chat_id for committed in commits]

        assert await claimed() == ["stops"]
        assert await claimed(research=("look",)) == []
        assert await claimed(default=("listen",), support=("look",)) == ["asks", "moved", "plain"]
        assert await claimed(default=(), support=("look",)) == []
        assert await claimed(default=("listen", "look")) == ["acts", "left"]

    async def test_two_callers_never_claim_the_same_chat(self, store: ChatStore) -> None:
        """Ten callers at once share twenty chats."""
        for number in range(20):
            await plans.created(store, f"chat-{number}", plans.send("hello"))
        claimed: list[Committed] = []

        async def claim(worker: str) -> None:
            claimed.extend(await store.claim(plans.plan(plans.claim(worker)), runs=plans.RUNS, limit=3))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(claim, f"worker-{number}")
        ids = [committed.facts.chat_id for committed in claimed]
        assert sorted(ids) == sorted(f"chat-{number}" for number in range(20))

    async def test_a_chat_that_cannot_be_claimed_keeps_no_other_from_it(self, store: ChatStore) -> None:
        """A plan that raises for one chat leaves that one alone, and the next takes its place: only that one."""
        for chat_id in ("poison", "good", "better", "later"):
            await plans.created(store, chat_id, plans.send("hello"))
        before = await contents(store, "poison")

        def picky(facts: Facts, now: datetime) -> Sequence[Decision]:
            if facts.chat_id == "poison":
                raise RuntimeError(facts.chat_id)
            return plans.plan(plans.claim())(facts, now)

        claimed = await store.claim(picky, runs=plans.RUNS, limit=2)
        assert [committed.facts.chat_id for committed in claimed] == ["good", "better"]
        assert await contents(store, "poison") == before

    async def test_the_holder_appends_its_events(self, store: ChatStore) -> None:
        """Its events get the next numbers, and no version is spent."""
        last = await plans.created(store, "chat", plans.send("hello"), plans.claim())
        events = await store.events("chat", after=0, limit=100)
        stored = await store.append_events("chat", 1, ChatState.streaming, [part("h"), part("i")])
        assert [event.seq for event in stored] == [len(events) + 1, len(events) + 2]
        assert await store.events("chat", after=0, limit=100) == [*events, *stored]
        assert await store.facts("chat") == last.facts.with_last_seq(len(events) + 2)
        committed = await store.change("chat", plans.plan(plans.reply("hi")))
        assert committed.events[0].seq == len(events) + 3

    async def test_a_lost_lease_appends_nothing(self, store: ChatStore) -> None:
        """Neither under another token or worker, nor in another state, nor once the lease is dropped."""
        await plans.created(store, "chat", plans.send("hello"), plans.claim())
        await self._appends_nothing(store, 2, ChatState.streaming)
        await self._appends_nothing(store, 1, ChatState.compacting)
        await self._appends_nothing(store, 1, ChatState.streaming, worker="another")
        await store.append_events("chat", 1, ChatState.streaming, [part("shown")], worker="worker")
        await store.change("chat", plans.plan(plans.move(Interrupt())))
        await self._appends_nothing(store, 1, ChatState.streaming)
        await store.change("chat", plans.plan(plans.move(Settled(token=plans.HOLDER))))
        await self._appends_nothing(store, 1, ChatState.interrupted)

    async def _appends_nothing(
        self, store: ChatStore, token: int, state: ChatState, *, worker: str | None = None
    ) -> None:
        for shown in ([part("unseen")], []):
            append_events = store.append_events("chat", token, state, shown, worker=worker)
            assert (await refused(store, "chat", append_events, StaleLease)).token == token

    async def test_the_leases_of_a_dead_worker_end_at_once(self, store: ChatStore) -> None:
        """A worker whose process is gone must not keep its chats until its leases run out."""
        for chat_id, worker in (("a", "dead"), ("b", "dead"), ("c", "alive")):
            await plans.created(store, chat_id, plans.send("hello"), plans.claim(worker, lease=30))
        assert await store.holders() == {"dead", "alive"}
        await store.renew("dead", 0)
        assert sorted((await store.overdue(limit=10)).leases) == [("a", 1), ("b", 1)]

    async def test_a_worker_is_not_gone_unless_it_is_known_to_have_been_there(self, store: ChatStore) -> None:
        """Neither a worker that lives nor one that never attended counts as gone: both may be at work."""
        store.attend("alive")
        watch = aiter(store.watch())

        async def first_hint() -> None:
            await anext(watch, None)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first_hint)
            await anyio.lowlevel.checkpoint()
            assert await store.gone(["alive", "unknown"]) == frozenset()
            assert await store.gone([]) == frozenset()
            tasks.cancel_scope.cancel()

    async def test_a_worker_renews_all_its_leases_at_once(self, store: ChatStore) -> None:
        """Those that ran out too: the token, not the time, is the fence. Those of other workers stay."""
        for chat_id, worker in (("a", "mine"), ("b", "mine"), ("c", "other")):
            await plans.created(store, chat_id, plans.send("hello"), plans.claim(worker, lease=0))
        assert await store.renew("mine", 60) == {"a": 1, "b": 1}
        assert (await store.overdue(limit=10)).leases == (("c", 1),)
        assert await store.renew("missing", 60) == {}

    async def test_a_lease_runs_out_by_the_stores_clock(self, store: ChatStore) -> None:
        """It is listed with its token, and ends when it is dropped."""
        held = await plans.created(store, "chat", plans.send("hello"), plans.claim(lease=30))
        expiry = await store.lease_expiry("chat")
        assert expiry is not None
        assert (expiry.expires - held.at).total_seconds() == 30  # noqa: PLR2004 - as claimed
        assert held.at <= expiry.now < expiry.expires
        assert (await store.overdue(limit=10)).leases == ()
        await store.renew("worker", 0)
        assert (await store.overdue(limit=10)).leases == (("chat", 1),)
        await store.change("chat", plans.plan(plans.move(LeaseExpired(token=plans.HOLDER))))
        assert (await store.overdue(limit=10)).leases == ()
        assert await store.lease_expiry("chat") is None

    async def test_a_passed_deadline_is_listed_until_the_call_is_answered(self, store: ChatStore) -> None:
        """Only in `requires_action`, and not for an archived chat."""
        moves = (plans.send("look"), plans.claim(), plans.reply("", client=["one", "two"]))
        await plans.created(store, "chat", *moves)
        await plans.created(store, "shelved", *moves, plans.move(Archived()))
        assert (await store.overdue(limit=10)).deadlines == ("chat",)
        await store.change("chat", plans.plan(plans.move(DeadlinePassed())))
        assert (await store.overdue(limit=10)).deadlines == ()

    async def test_a_stray_is_listed_and_can_be_repaired(self, store: ChatStore) -> None:
        """A state that the table does not know is read as it is stored, and `repaired` leads on."""
        for chat_id, state in (("chat", "dreaming"), ("blank", "")):
            await _stray(store, chat_id, state)
            assert (await store.overdue(limit=10)).strays == (chat_id,)
            facts = await store.facts(chat_id)
            assert (facts.state, facts.stored_state) == (ChatState.error, state)
            error = ErrorInfo(kind=REPAIRED, message=f"the state {state!r} is unknown")
            repaired = await store.change(chat_id, plans.plan(plans.move(Repaired(error=error))))
            assert (repaired.facts.state, repaired.facts.stored_state) == (ChatState.error, None)
            assert (await store.overdue(limit=10)).strays == ()
            assert verify_records(await store.audit(chat_id)).ok

    async def test_a_sweep_is_bounded(self, store: ChatStore) -> None:
        """Each list holds as many chats as were asked for, however many calls one of them has, and no more."""
        moves = (plans.send("look"), plans.claim(lease=0))
        for number in range(3):
            await plans.created(store, f"leased-{number}", *moves)
            await plans.created(store, f"asking-{number}", *moves, plans.reply("", client=["a", "b", "c"]))
            await _stray(store, f"stray-{number}")
        overdue = await store.overdue(limit=2)
        assert [len(overdue.leases), len(overdue.deadlines), len(overdue.strays)] == [2, 2, 2]

    async def test_a_closed_store_refuses(self, store: ChatStore) -> None:
        """Closing twice is harmless; every later call raises `StoreError`."""
        await plans.created(store, "chat")
        await store.close()
        await store.close()
        for call in (store.facts("chat"), store.change("chat", plans.idle)):
            assert "not open" in (await failure_of(call, StoreError)).problem
