"""What a store promises about pruning: it deletes parts that are not needed any more, and nothing else."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from datetime import datetime

from turnwise.persistence.protocol import ChatStore
from turnwise.states.decide import Decision
from turnwise.states.events import ErrorInfo, Event, PartEvent
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.transcript import fold
from turnwise.states.triggers import AttemptDiscarded, Interrupt, Released, Settled
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part

_ASKED = (plans.send("hello"), plans.claim())
_ERROR = ErrorInfo(kind="overloaded", message="try again")


def _discarded(facts: Facts, now: datetime) -> Decision:
    return plans.move(AttemptDiscarded(token=plans.HOLDER, error=_ERROR, delay=1, retry_at=now))(facts, now)


async def _shows(store: ChatStore, chat_id: str, *texts: str, step: int = 1, attempt: int = 1) -> None:
    parts = [part(text, step=step, attempt=attempt) for text in texts]
    facts = await store.facts(chat_id)
    await store.append_events(chat_id, facts.fence, ChatState.streaming, parts)


async def _answered(store: ChatStore, chat_id: str, *texts: str) -> None:
    await plans.created(store, chat_id, *_ASKED)
    await _shows(store, chat_id, *texts)
    await store.change(chat_id, plans.plan(plans.reply("".join(texts))))


async def _pruned(store: ChatStore, *, keep: float = 0, limit: int = 100) -> int:
    """Prune to the end, and return how many parts that were."""
    deleted, after = 0, ""
    while True:
        pruned = await store.prune(keep=keep, after=after, limit=limit)
        assert pruned.parts <= limit
        deleted += pruned.parts
        if pruned.after is None:
            return deleted
        after = pruned.after


async def _events(store: ChatStore, chat_id: str) -> list[Event]:
    return await store.events(chat_id, after=0, limit=1000)


async def _parts_of(store: ChatStore, chat_id: str) -> list[str | None]:
    return [event.part.delta for event in await _events(store, chat_id) if isinstance(event, PartEvent)]


class PruningConformance:
    """Parts are pruned once a message repeats them, or once their attempt was discarded."""

    async def test_parts_of_a_finished_reply_are_pruned_and_their_numbers_skipped(self, store: ChatStore) -> None:
        """All else stays, and a subscriber that resumes after any event still arrives at the same transcript."""
        await _answered(store, "chat", "h", "i")
        events, facts = await _events(store, "chat"), await store.facts("chat")
        assert await _pruned(store) == 2  # noqa: PLR2004 - as shown
        left = await _events(store, "chat")
        assert left == [event for event in events if event.kind != "part"]
        assert await store.shown("chat", 1, 1) == []
        assert await store.facts("chat") == facts
        for count in range(len(events) + 1):
            rest = await store.events("chat", after=count, limit=1000)
            assert fold(rest, fold(events[:count])) == fold(events)
        assert await _pruned(store) == 0
        committed = await store.change("chat", plans.plan(plans.send("more")))
        assert committed.events[0].seq == events[-1].seq + 1

    async def test_what_is_shown_of_a_reply_under_way_is_not_pruned(self, store: ChatStore) -> None:
        """While it streams, while no worker runs it, until an interrupt is settled: it may become a partial message."""
        await plans.created(store, "chat", *_ASKED)
        await _shows(store, "chat", "h", "i")
        for move in (plans.move(Released(token=plans.HOLDER)), plans.move(Interrupt()), plans.claim()):
            assert await _pruned(store) == 0
            assert [event.part.delta for event in await store.shown("chat", 1, 1)] == ["h", "i"]
            await store.change("chat", plans.plan(move))
        assert await _pruned(store) == 0
        await store.change("chat", plans.plan(plans.move(Settled(token=plans.HOLDER))))
        assert await _pruned(store) == 2  # noqa: PLR2004 - as shown

    async def test_an_attempt_that_was_taken_back_is_pruned_before_its_step_is_over(self, store: ChatStore) -> None:
        """It is pruned as soon as the next attempt has started, whose parts stay."""
        await plans.created(store, "chat", *_ASKED)
        await _shows(store, "chat", "no")
        await store.change("chat", plans.plan(_discarded, plans.start()))
        await _shows(store, "chat", "y", "es", attempt=2)
        assert await _pruned(store) == 1
        assert await _parts_of(store, "chat") == ["y", "es"]

    async def test_an_earlier_step_is_pruned_while_the_turn_goes_on(self, store: ChatStore) -> None:
        """A turn may take days: its tools, or a client that does not answer."""
        await plans.created(store, "chat", *_ASKED)
        await _shows(store, "chat", "I look")
        await store.change("chat", plans.plan(plans.reply("I look", client=["c"])))
        assert await _pruned(store) == 1
        await store.change("chat", plans.plan(plans.submit("c"), plans.claim()))
        await _shows(store, "chat", "I see", step=2)
        assert await _pruned(store) == 0
        assert await _parts_of(store, "chat") == ["I see"]

    async def test_parts_stay_as_long_as_is_asked(self, store: ChatStore) -> None:
        """By the store's own clock."""
        await _answered(store, "chat", "h", "i")
        assert await _pruned(store, keep=3600) == 0
        assert await _parts_of(store, "chat") == ["h", "i"]

    async def test_pruning_goes_on_where_it_stopped(self, store: ChatStore) -> None:
        """However few parts and chats are taken at a time; a chat that has nothing to prune keeps none from it."""
        for chat_id in ("a", "c", "d"):
            await _answered(store, chat_id, "1", "2", "3")
        await plans.created(store, "b", *_ASKED)
        await _shows(store, "b", "live")
        first = await store.prune(keep=0, after="", limit=2)
        assert first.parts == 2  # noqa: PLR2004 - the limit
        assert first.after is not None
        second = await store.prune(keep=0, after=first.after, limit=3)
        assert second.parts == 3  # noqa: PLR2004 - what is left of one chat, and no more than the limit with the next
        assert await _pruned(store, limit=1) == 4  # noqa: PLR2004 - the rest
        assert [await _parts_of(store, chat_id) for chat_id in "abcd"] == [[], ["live"], [], []]
