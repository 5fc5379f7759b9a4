"""Fair shares: owners do not delay each other, and caps hold for all workers of a database."""

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from typer.testing import CliRunner

from support.engines import OpenEngine
from support.latches import Latch
from support.served import served_beside
from turnwise import Agent, Engine, ModelRequest, Settings, SettingsError
from turnwise.cli.app import app
from turnwise.persistence.shares import Caps, Shares
from turnwise.persistence.sqlite import SQLiteStore
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.testing.clock import ManualClock
from turnwise.testing.conformance import plans

FAIR = Settings(fair_by="owner", max_running=4, coalesce=0)


class Working(ScriptedModel):
    """Records working chats, and blocks the calls until a latch opens."""

    def __init__(self, latch: Latch | None = None, **options: Any) -> None:
        self.order: list[str] = []
        self.now, self.most = 0, 0
        self.latch = latch
        super().__init__(self._reply, sleep=self._work, **options)

    def _reply(self, request: ModelRequest) -> Reply:
        self.order.append(request.chat_id)
        return Reply("done", first_delay=1)

    async def _work(self, _: float) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await (asyncio.sleep(0.01) if self.latch is None else self.latch.pass_through(0))
        self.now -= 1


@pytest.mark.parametrize("held", [False, True])
async def test_garbled_key_harms_only_its_chat(tmp_path: Path, held: bool) -> None:
    """For waiting and for working chats: claims skip to other keys, and count the key's chats."""
    store = SQLiteStore(str(tmp_path / "chats.db"))
    await store.open()
    shares = Shares({}, Caps(per_key=1))
    claim = partial(store.claim, plans.plan(plans.claim()), runs=plans.RUNS, limit=9)
    await plans.created(store, "damaged", plans.send("hello"), owner="ann")
    if held:
        await claim()
    with closing(sqlite3.connect(tmp_path / "chats.db")) as connection, connection:
        connection.execute("UPDATE chats SET fair_key = x'00ff'")
    for chat_id in ("b1", "b2"):
        await plans.created(store, chat_id, plans.send("hello"), owner="bob")
    assert [committed.facts.chat_id for committed in await claim(shares=shares)] == ["b1"]
    assert await claim(shares=shares) == []
    await store.close()


async def test_refused_chat_takes_no_share(tmp_path: Path) -> None:
    """Within a cap, another chat of its owner is claimed in its place, also once the refused one is known."""
    store = SQLiteStore(str(tmp_path / "chats.db"))
    await store.open()
    for chat_id in ("damaged", "a1", "a2"):
        await plans.created(store, chat_id, plans.send("hello"), owner="ann")
    with closing(sqlite3.connect(tmp_path / "chats.db")) as connection, connection:
        connection.execute("UPDATE chats SET event_seq = 'poison' WHERE id = 'damaged'")
    for expected in (["a1"], ["a2"]):
        claim, shares = plans.plan(plans.claim()), Shares({}, Caps(per_key=1))
        claimed = await store.claim(claim, runs=plans.RUNS, limit=9, shares=shares)
        assert [committed.facts.chat_id for committed in claimed] == expected
        for chat_id in expected:
            await store.change(chat_id, plans.plan(plans.reply("done")))
    await store.close()


async def filled(engine: Engine, owner: str | None, number: int, **options: Any) -> list[str]:
    return [(await engine.create_chat(owner=owner, message="hi", **options)).id for _ in range(number)]


async def rested(engine: Engine, chat_ids: list[str]) -> None:
    with anyio.fail_after(60):
        for chat_id in chat_ids:
            await engine.wait(chat_id)


async def test_small_owner_waits_for_two_calls_at_most(open_engine: OpenEngine) -> None:
    """With 300 chats of another owner in front. Each of the worker's four slots is busy for one call's time."""
    model = Working()
    async with open_engine(model, settings=FAIR) as engine:
        await filled(engine, "large", 300)
        before = len(model.order)
        (chat_id,) = await filled(engine, "small", 1)
        await rested(engine, [chat_id])
        assert model.order.index(chat_id) - before <= 2 * FAIR.max_running


@pytest.mark.parametrize("whose", ["owner", "agent", "model"])
async def test_caps_hold_for_all_workers(open_engine: OpenEngine, whose: str) -> None:
    """Two workers share one database. Every message is answered."""
    model, settings = (
        Working(),
        Settings(max_running=5, coalesce=0, poll_interval=0.05, **{f"max_running_per_{whose}": 2}),
    )
    async with open_engine(model, settings=settings) as one, open_engine(model, settings=settings) as other:
        sends = [filled(engine, "ann", 6) for engine in (one, other)]
        chats = [*chain.from_iterable(await asyncio.gather(*sends))]
        await rested(one, chats)
    assert sorted(model.order) == sorted(chats)
    assert model.most <= 2


async def test_idle_places_go_to_those_below_their_cap(open_engine: OpenEngine) -> None:
    """An agent's own key groups chats; a turn's next message counts as a new one; explain names the cap."""
    latch = Latch()
    model = Working(latch)
    team = Agent(name="team", model=model, settings=Settings(fair_by="metadata.team"))
    settings = Settings(max_running=9, max_running_per_owner=2, coalesce=0)
    async with open_engine(None, agents=[team, Agent(name="plain", model=model)], settings=settings) as engine:
        mine = [*await filled(engine, "a", 2, agent="team", metadata={"team": "red"})]
        mine += await filled(engine, "b", 1, agent="team", metadata={"team": "red"})
        mine += await filled(engine, "b", 1, agent="team", metadata={"team": 7})
        mine += await filled(engine, None, 3, agent="plain")
        while len(model.order) < 5:  # noqa: ASYNC110 - the model says nothing before
            await asyncio.sleep(0.001)
        reasons = {chat: (await engine.explain(chat)).reason for chat in mine}
        waiting = [chat for chat in mine if (await engine.get_chat(chat)).state == "pending"]
        assert waiting == [mine[2], mine[6]]
        assert "owner 'red' has 2 of 2 chats at work" in reasons[mine[2]]
        assert "chats without an owner have 2 of 2 chats at work" in reasons[mine[6]]
        await engine.interrupt(mine[2])  # what has to settle is not capped
        assert (await engine.wait(mine[2], timeout=60)).state == "interrupted"
        exported = [line async for line in engine.export_chat(mine[6])]
        latch.open()
        await rested(engine, mine)
    async with Engine("sqlite://", model=ScriptedModel([]), settings=Settings(run_worker=False)) as elsewhere:
        await elsewhere.import_chat(exported)
        assert (await elsewhere.verify(mine[6])).ok


@pytest.mark.parametrize("created", ["before the worker starts", "here", "elsewhere"])
async def test_queued_message_waits_its_turn(open_engine: OpenEngine, created: str) -> None:
    """At the end of a turn the chat queues behind its owner's other waiting chats, wherever those were created."""
    latch, clock, settings = Latch(), ManualClock(), Settings(fair_by="owner", max_running=1, coalesce=0)
    model = Working(latch)
    async with open_engine(model, settings=Settings(run_worker=False), clock=clock) as other:
        (first,) = await filled(other, "ann", 1)
        await other.send_message(first, "and this", when_busy="queue")
        second = await filled(other, "ann", 1) if created == "before the worker starts" else []
        async with open_engine(model, settings=settings, clock=clock) as engine:
            while not model.order:  # noqa: ASYNC110 - the model says nothing before
                await asyncio.sleep(0.001)
            second = second or await filled(engine if created == "here" else other, "ann", 1)
            await clock.advance(settings.poll_interval)
            while not engine._worker._runtime.chats_wait:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            latch.open()
            await rested(engine, [first, *second])
    assert model.order == [first, *second, first]


async def test_fair_turn_costs_no_commit_more(tmp_path: Path) -> None:
    """With no other chat waiting, the commit that stores a message also claims it."""
    for settings in (Settings(), Settings(fair_by="owner", weights={"ann": 2})):
        model, clock = ScriptedModel([Reply("one"), Reply("two")]), ManualClock()
        async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model=model, settings=settings, clock=clock) as engine:
            chat = await engine.create_chat(owner="ann")
            await anyio.wait_all_tasks_blocked()
            while engine._worker._runtime.chats_wait:  # type: ignore[union-attr]  # noqa: ASYNC110 - it looks for chats
                await asyncio.sleep(0.001)
            assert (await engine.send_message(chat.id, "hi")).chat.state == "streaming"
            await engine.wait(chat.id)


def test_explain_names_the_cap_over_http_and_in_a_terminal(tmp_path: Path) -> None:
    store, settings = f"sqlite:///{tmp_path / 'chats.db'}", Settings(max_running_per_owner=1)
    model = ScriptedModel(lambda _: Reply("late", first_delay=600))
    with served_beside(lambda: Engine(store, model=model, settings=settings)) as url:
        header = {"Authorization": "Bearer ada-token"}
        with httpx.Client(base_url=url, headers=header, timeout=60) as client:
            ids = [client.post("/chats", json={"message": "hi"}).json()["id"] for _ in range(2)]
            deadline, reason = time.monotonic() + 120, ""
            while "at work" not in reason and time.monotonic() < deadline:
                reason = client.get(f"/chats/{ids[1]}/explain").json()["reason"]
        typed = ["explain", ids[1], "--json", "--server", url]
        shown = CliRunner().invoke(app, typed, env={"TURNWISE_TOKEN": "ada-token"})
    assert "owner 'ada' has 1 of 1 chats at work" in reason
    assert json.loads(shown.output)["reason"] == reason


@pytest.mark.parametrize(
    "wrong",
    [{"fair_by": "team"}, {"fair_by": "metadata."}, {"weights": {"ann": 0}}, {"max_running_per_owner": 0}],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Settings(**wrong)
