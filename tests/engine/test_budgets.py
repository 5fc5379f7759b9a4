"""Budgets of engines: limits, refusals, and reports to operators and owners."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry
from tests.states.table_cases import NO_FUNDS

from support.life import client, compacting, streaming
from support.lives import SLOW_STORES, lives_in
from support.served import served
from support.sql_by_hand import by_hand
from turnwise import Agent, BudgetSpent, ChatNotFound, ChatStore, Engine, InvalidArgument, Settings, delegate, tool
from turnwise.client import Client
from turnwise.engine.observers.prometheus import PrometheusObserver
from turnwise.persistence.archive.format import chain_hash
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.sql.budgets import in_period
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states import triggers as t
from turnwise.states.budgets import Amount, Reservation, StoredBudget
from turnwise.states.errors import ChatUnreadable, ImportRefused
from turnwise.states.names import ChatState, Need, Stage
from turnwise.states.usage import Usage
from turnwise.testing import ManualClock, crash_everywhere

WORDS: Final = Settings(parameters={"max_output_tokens": 40})
LOOK: Final = Reply(calls=[Call("look", {})], usage=(60, 20))
HELD: Final = {"c": Reservation(5, None)}
DONE: Final = Reply("Done.", usage=(60, 20))


@tool
async def look() -> str:
    """Look out of the window."""
    return "A fox."


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_turn_ends_at_the_limit(place: str, request: pytest.FixtureRequest) -> None:
    """The next message is refused until the period ends or an operator raises the budget."""
    model, clock = ScriptedModel([LOOK, LOOK, DONE, DONE]), ManualClock(datetime(2026, 3, 31, 22, tzinfo=UTC))
    url = lives_in(place, request).url
    async with Engine(url, model=model, tools=[look], settings=WORDS, clock=clock) as engine:
        budget = await engine.acting("ops").set_budget(owner="ada", tokens=220, per="day", timezone="Europe/Berlin")
        assert budget is not None
        assert (budget.actor, budget.until) == ("ops", datetime(2026, 4, 1, 22, tzinfo=UTC))
        chat = await engine.create_chat(owner="ada", message="What is outside?")
        ended = await engine.wait(chat.id)
        assert (ended.state, ended.stop_reason, len(model.requests)) == ("waiting", "token_budget", 2)
        wait = "wait until 2026-04-01 22:00:00 UTC, or ask an operator to raise it"
        with pytest.raises(BudgetSpent, match=wait) as no:
            await engine.send_message(chat.id, "And now?")
        assert (no.value.until, no.value.retry_after) == (budget.until, 86_400)
        with pytest.raises(BudgetSpent):
            await engine.create_chat(owner="ada", message="Hello? " * 20)
        explained = await engine.explain(chat.id)
        assert explained.budgets == tuple(await engine.budgets(chat_id=chat.id))
        assert "The budget of owner 'ada' has 60 of 220 tokens left until 2026-04-01 22:00 UTC" in explained.reason
        assert (await engine.verify(chat.id)).ok
        await engine.set_budget(owner="ada", tokens=400, per="day", timezone="Europe/Berlin")
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id)).stop_reason == "end_turn"
        clock.advance(86_400)
        (fresh,) = await engine.budgets(owner="ada")
        assert (fresh.spent, fresh.left.tokens) == (Amount(), 400)
        assert await engine.set_budget(owner="ada") is None
        assert await engine.budgets() == []
        with pytest.raises(InvalidArgument, match="either an owner or a chat_id"):
            await engine.set_budget(tokens=1)
        with pytest.raises(InvalidArgument, match=r"timezone: must be the name of a time zone"):
            await engine.set_budget(owner="ada", tokens=1, timezone="Mars/Olympus")
        with pytest.raises(ChatNotFound):
            await engine.set_budget(chat_id="c0", tokens=1)


async def test_unknown_price_is_said_and_reserves_all_that_is_left() -> None:
    free, priced = Reply("Hm.", usage=(10, 5)), Reply("Hm.", usage=Usage(input_tokens=10, cost=Decimal("0.5")))
    observer = PrometheusObserver(registry := CollectorRegistry())
    async with Engine("sqlite://", model=ScriptedModel([free, priced]), observers=[observer]) as engine:
        chat = await engine.create_chat()
        await engine.set_budget(chat_id=chat.id, cost=0.4)
        await engine.ask(chat.id, "Hello?")
        (budget,) = await engine.budgets(chat_id=chat.id)
        assert (budget.spent, budget.unpriced, budget.left.cost) == (Amount(15), 1, Decimal("0.4"))
        await engine.ask(chat.id, "Hello?")
        with pytest.raises(BudgetSpent, match="the budget of money is spent; ask an operator to raise it") as refused:
            await engine.send_message(chat.id, "Hello?")
        assert refused.value.until is None
        (budget,) = await engine.budgets(chat_id=chat.id)
        assert "without 1 call(s) of unknown price" in (await engine.explain(chat.id)).reason
        observer.budgets([budget])
        labels = {"scope": "chat", "unit": "dollars", "figure": "spent"}
        assert registry.get_sample_value("turnwise_budgets", labels) == 0.5
    budget = StoredBudget(owner="ada", cost=Decimal(3), spent=Amount(0, Decimal(1)))
    held = budget.reserve("c", NO_FUNDS.estimator.most(5))
    assert (held.reserved.cost, held.left_of(held.spent + held.reserved)[1]) == (2, 0)


async def test_subagents_spend_their_owners_budget() -> None:
    helper = Agent("helper", model=ScriptedModel([DONE]), settings=WORDS)
    dig = Reply(calls=[Call("ask", {"task": "Dig."})], usage=(60, 20))
    boss = ScriptedModel([dig, DONE, dig])
    agents = [Agent("boss", model=boss, tools=[delegate(helper, name="ask")], settings=WORDS), helper]
    async with Engine("sqlite://", agents=agents) as engine:
        await engine.set_budget(owner="ada", tokens=1000)
        chat = await engine.create_chat(owner="ada", agent="boss", message="Dig!")
        await engine.wait(chat.id)
        (budget,) = await engine.budgets()
        assert (budget.spent.tokens, budget.reserved) == (240, Amount())
        await engine.set_budget(owner="ada", tokens=360)
        await engine.send_message(chat.id, "Dig on!")
        stopped = await engine.wait(chat.id)
        (*_, refused) = await engine.messages(chat.id)
        assert (stopped.stop_reason, len(await engine.subagents(chat.id))) == ("token_budget", 1)
        assert "the budget of tokens is spent" in str(refused.parts[0].output)


def test_call_that_nothing_pays_for_is_left() -> None:
    """A lost attempt is settled and its step abandoned; a compaction waits; client calls stay open."""
    lost = streaming()
    lost.held(t.LeaseExpired)
    folding = compacting()
    folding.held(t.LeaseExpired)
    asking = compacting(client("a"))
    asking.held(t.LeaseExpired)
    for life in (lost, folding, asking):
        life.fire(t.Claimed, worker="v", funds=NO_FUNDS)
    states = [(one.facts.state, one.facts.stop_reason, one.facts.step.attempt_open) for one in (lost, folding)]
    assert states == [(ChatState.waiting, "token_budget", False), (ChatState.waiting, "end_turn", False)]
    assert [write.kind for write in lost.decisions[-1].writes] == ["usage"]
    assert (lost.facts.step.stage, folding.facts.compaction.need) == (Stage.done, Need.due)
    assert asking.facts.state is ChatState.requires_action
    for trigger, arguments in ((t.Resume, {}), (t.RequestCompaction, {}), (t.SendMessage, {"parts": ()})):
        with pytest.raises(BudgetSpent):
            lost.fire(trigger, funds=NO_FUNDS, **arguments)


@pytest.mark.parametrize(
    ("per", "until", "now", "ends", "spent"),
    [
        ("month", None, (2026, 12, 30, 23), (2026, 12, 31, 23), 7),
        ("month", (2026, 12, 31, 23), (2026, 12, 31, 23), (2027, 1, 31, 23), 0),
        ("month", (2026, 12, 31, 23), (2026, 12, 31, 22), (2026, 12, 31, 23), 7),
        ("day", (2026, 12, 30, 23), (2026, 12, 30, 23), (2026, 12, 31, 23), 0),
        (None, (2026, 12, 30, 23), (2026, 12, 30, 23), None, 7),
        (None, None, (2026, 12, 30, 23), None, 7),
    ],
)
def test_periods_are_those_of_the_calendar(per: Any, until: Any, now: Any, ends: Any, spent: int) -> None:
    """Periods follow the budget's time zone. A new period resets the spending; a removed budget does not."""
    times = [None if time is None else datetime(*time, tzinfo=UTC) for time in (until, now, ends)]
    stored = StoredBudget(
        owner="ada", per=per, timezone="Europe/Berlin", until=times[0], spent=Amount(7), unpriced=1, reservations=HELD
    )
    found = in_period(stored, times[1])  # type: ignore[arg-type]
    assert (found.until, found.spent.tokens, bool(found.unpriced)) == (times[2], spent, bool(spent))
    assert found.reservations == HELD


async def test_every_crash_settles_once() -> None:
    """A call counts with its usage or, if its worker died, with its reservation."""

    def engine(store: ChatStore, clock: ManualClock) -> Engine:
        return Engine(store, model=ScriptedModel([LOOK, DONE]), tools=[look], settings=WORDS, clock=clock)

    async def scenario(engine: Engine) -> None:
        await engine.set_budget(owner="ada", tokens=10_000)
        await engine.create_chat(owner="ada", message="What is outside?", client_id="k")

    async def check(engine: Engine) -> None:
        (budget,), (chat,) = await engine.budgets(), (await engine.list_chats()).items
        calls = [entry.usage for entry in await engine.usage(chat.id)]
        known = sum((one.input_tokens or 0) + (one.output_tokens or 0) for one in calls)
        lost = sum(one.partial for one in calls)
        assert budget.reserved == Amount()
        assert known + 40 * lost <= budget.spent.tokens <= known + 140 * lost

    assert len((await crash_everywhere(engine, scenario, check=check)).points) > 12


UNREADABLE: Final = (
    *(
        "",
        "null",
        "7",
        "{",
        "{}",
        '{"owner":"bob","tokens":1}',
        '{"owner":"ada","tokens":-1}',
        '{"owner":"ada","per":"year"}',
    ),
    *('{"owner":"ada","cost":"NaN"}', '{"owner":"ada","cost":"1","spent":{"cost":"sNaN"}}'),
    *(
        '{"owner":"ada","tokens":9,"unpriced":-1}',
        '{"owner":"ada","cost":"1","reservations":{"c":{"tokens":1,"cost":"-1"}}}',
    ),
    '{"owner":"ada","tokens":9,"per":"day","timezone":"Mars/X"}',
)


@pytest.mark.parametrize("place", SLOW_STORES)
async def test_unreadable_budget_stops_its_owner_alone(place: str, request: pytest.FixtureRequest) -> None:
    """The owner's chats wait with an error that names the budget; `doctor` finds it, and new limits replace it."""
    url, idle = lives_in(place, request).url, Settings(run_worker=False)
    problem = r"the budget of owner ada: .*turnwise budget"

    async def poison(body: str) -> None:
        await by_hand(url, f"UPDATE budgets SET body = '{body}' WHERE key = 'owner:ada'")  # noqa: S608 - of the test

    async with Engine(url, model=ScriptedModel([]), settings=idle) as engine:
        for owner in ("ada", "bob"):
            await engine.set_budget(owner=owner, tokens=10**6)
        chat, resting = await engine.create_chat(owner="ada", message="hi"), await engine.create_chat(owner="ada")
        for body in UNREADABLE:
            await poison(body)
            for refused in (engine.send_message(resting.id, "hi"), engine.budgets(owner="ada")):
                with pytest.raises(ChatUnreadable, match=problem):
                    await refused
            assert [one.owner for one in await engine.budgets()] == ["bob"], body
            assert "the budget of owner ada" in (await engine.explain(chat.id)).reason, body
            columns = [one.issues[0].column async for one in engine.diagnose()]
            assert columns == ["budgets.body"], body
            await engine.set_budget(owner="ada", tokens=10**6)
        await poison("7")
    observer = PrometheusObserver(registry=CollectorRegistry())
    quick, model = Settings(poll_interval=0.05), ScriptedModel(lambda _: "ok")
    async with Engine(url, model=model, settings=quick, observers=[observer]) as engine:
        theirs = await engine.create_chat(owner="bob")
        assert (await engine.ask(theirs.id, "hi", timeout=60)).text == "ok"
        assert (await engine.get_chat(chat.id)).state == "pending"
        await engine.set_budget(owner="ada", tokens=10**6)
        await engine.wait(chat.id, until=["waiting"], timeout=60)
        await poison("{")
        assert (await engine.erase_owner("ada")).left == {}
        assert [one async for one in engine.diagnose()] == []


async def test_import_refuses_a_budget_no_store_wrote() -> None:
    """Otherwise every later command would refuse the imported chat."""
    async with Engine("sqlite://", model=ScriptedModel([])) as engine:
        chat = await engine.create_chat()
        await engine.set_budget(chat_id=chat.id, cost=1)
        lines = [line async for line in engine.export_chat(chat.id)]
        await engine.delete_chat(chat.id)
    for amount in ("NaN", "-1", "Infinity"):
        async with Engine("sqlite://", model=ScriptedModel([])) as engine:
            header = json.loads(lines[0])
            del header["hash"]
            header["budget"] = header["budget"].replace('"1.0"', f'"{amount}"')
            header["hash"] = chain_hash(GENESIS, header)
            with pytest.raises(ImportRefused, match=r"in the header, the budget of chat .* below zero"):
                await engine.import_chat([json.dumps(header), *lines[1:]])


async def test_budgets_over_http() -> None:
    """Operators set budgets; owners read their own, and get a 429 that names the end of the period."""
    async with (
        served(Engine("sqlite://", model=ScriptedModel([DONE] * 3), settings=WORDS)) as service,
        service.client() as ada,
        service.client("bob") as bob,
        Client(service.url, token="operator-token") as client,  # noqa: S106 - of the tests
    ):
        await client.set_budget(owner="ada", tokens=100, cost=Decimal("2.50"), per="month")
        chat = (await ada.post("/chats", json={"message": "Hello!"})).json()["id"]
        await service.engine.wait(chat)
        refused = await ada.post(f"/chats/{chat}/messages", json={"content": "More!"})
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:turnwise:problem:budget-spent")
        assert 0 < int(refused.headers["Retry-After"]) <= 31 * 86_400
        shown = (await ada.get("/budgets", params={"owner": "bob"})).json()
        assert shown == (await ada.get("/budgets", params={"chat_id": chat})).json()
        assert [(one["owner"], one["left"]) for one in shown] == [("ada", {"tokens": 20, "cost": "2.50"})]
        assert (await bob.get("/budgets", params={"chat_id": chat})).status_code == 404
        with pytest.raises(BudgetSpent) as spent:
            await client.send_message(chat, "More!")
        assert spent.value.until == datetime.fromisoformat(refused.json()["until"])
        raised = await client.set_budget(owner="ada", tokens=1000)
        assert [raised] == await client.budgets()
        await client.ask(chat, "More!")
