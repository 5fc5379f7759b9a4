"""Filters of lists, counts by state, and all chats of one owner, on both stores."""

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from support.gated_model import GatedModel
from turnwise import Agent, Engine, Settings, Usage
from turnwise.engine.admin import owners
from turnwise.engine.config.results import ChatCounts
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.errors import ChatNotFound, ImportRefused, InvalidArgument
from turnwise.testing import ManualClock

BOTH = pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
IDLE = Settings(run_worker=False)
MODEL = ScriptedModel([])


@BOTH
async def test_lists_are_filtered(either_url: str) -> None:
    clock = ManualClock()
    agents = [Agent("sales", MODEL), Agent("support", MODEL)]
    async with Engine(either_url, agents=agents, settings=IDLE, clock=clock) as engine:
        odd = await engine.create_chat(agent="sales", title='100% "Größe"_x', metadata={"ticket": "7", "vip": True})
        clock.step(3600)
        late = await engine.create_chat(agent="support", title="Refund", metadata={"ticket": "8", "n": 1.0})
        other = await engine.create_chat(agent="support", owner="ada", metadata={"about": {"ticket": "7"}})
        await engine.archive(late.id)

        async def ids(**wanted: object) -> list[str]:
            return [chat.id for chat in (await engine.list_chats(**wanted)).items]  # type: ignore[arg-type]

        noon = odd.created_at + timedelta(seconds=1800)
        assert await ids() == [other.id, late.id, odd.id]
        assert await ids(agent="support") == [other.id, late.id]
        assert await ids(title='% "GRÖßE"_') == []
        assert await ids(title='% "GRößE"_') == await ids(title="größe") == [odd.id]
        assert await ids(title="%") == [odd.id]
        assert await ids(metadata={"ticket": "7"}) == await ids(metadata={"vip": True}) == [odd.id]
        assert await ids(metadata={"n": 1}) == [late.id]
        assert await ids(metadata={"ticket": "7", "vip": False}) == []
        assert await ids(created_after=noon) == [other.id, late.id]
        assert await ids(created_after=late.created_at) == [other.id, late.id]
        assert await ids(created_before=noon) == [odd.id]
        assert await ids(created_before=odd.created_at) == []
        assert await ids(archived=True) == [late.id]
        assert await ids(archived=False, agent="support") == await ids(owner="ada", agent="support") == [other.id]
        with pytest.raises(InvalidArgument, match="time zone"):
            await ids(created_after=datetime(2026, 1, 1))  # noqa: DTZ001 - the point
        with pytest.raises(InvalidArgument, match="between the years 1 and 9999"):
            await ids(created_before=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23))))


@BOTH
async def test_filtered_pages_lose_no_chat(either_url: str) -> None:
    """However few of the rows match."""
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chats = [await engine.create_chat(title="blue" if n % 3 else "red", metadata={"n": n}) for n in range(12)]
        wanted = [chat.id for chat in reversed(chats) if chat.title == "red"]
        found: list[str] = []
        after = None
        while True:
            page = await engine.list_chats(title="RED", limit=1, after=after)
            found += [chat.id for chat in page.items]
            after = page.next
            if after is None:
                break
        assert found == wanted
        assert [one.id for one in (await engine.list_chats(metadata={"n": 3}, limit=1)).items] == [chats[3].id]


@BOTH
async def test_chats_are_counted_by_state(either_url: str) -> None:
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chats = [await engine.create_chat(owner=owner) for owner in ("ada", "ada", "bob", None)]
        await engine.send_message(chats[0].id, "hello")
        await engine.archive(chats[1].id)
        assert await engine.count_chats() == ChatCounts(states={"pending": 1, "waiting": 2}, archived=1)
        assert await engine.count_chats(owner="ada") == ChatCounts(states={"pending": 1, "waiting": 0}, archived=1)


async def test_chat_says_how_full_its_context_is() -> None:
    reply = Reply("Done.", usage=Usage(input_tokens=300, output_tokens=10))
    async with Engine("sqlite://", model=ScriptedModel([reply], context_limit=1000)) as engine:
        chat = await engine.create_chat()
        assert chat.context_limit is None
        after = (await engine.ask(chat.id, "hello")).chat
        assert after.context_limit == 1000
        assert after.context_tokens is not None
        assert 300 <= after.context_tokens < 400


@BOTH
async def test_owner_moves_to_another_store(either_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With budgets and schedules, page by page; a second import after an interrupted one changes nothing."""
    monkeypatch.setattr(owners, "_PAGE", 2)
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chats = [await engine.create_chat(owner="ada", message=f"number {n}") for n in range(3)]
        await engine.create_chat(owner="bob")
        await engine.schedule(chats[0].id, "wake up", every="0 9 * * 1", id="monday")
        await engine.set_budget(owner="ada", tokens=1000, per="day")
        await engine.set_budget(chat_id=chats[1].id, cost=5)
        lines = [line async for line in engine.export_owner("ada")]
        due = await engine.schedules(chats[0].id)
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        with pytest.raises(ImportRefused, match="cut off"):
            await engine.import_owner(lines[:-1])
        first = await engine.import_owner(lines)
        assert (first.imported, sorted(first.present), first.budgets) == ([], sorted(chat.id for chat in chats), 0)
        assert [one.id for one in (await engine.list_chats(owner="ada")).items] == [chat.id for chat in chats]
        assert await engine.schedules(chats[0].id) == due
        budgets = {(one.owner, one.chat_id): (one.tokens, one.cost, one.per) for one in await engine.budgets()}
        assert budgets == {("ada", None): (1000, None, "day"), (None, chats[1].id): (None, 5, None)}
        assert (await engine.import_owner(lines)).budgets == 0


async def test_damaged_owner_is_refused_line_by_line() -> None:
    """Every damage is an `ImportRefused`; budgets and chats of another owner are refused."""
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        for owner in ("ada", "bob"):
            await engine.create_chat(owner=owner)
            await engine.set_budget(owner=owner, tokens=1000, cost=Decimal("2.50"))
        ada, bob = [[line async for line in engine.export_owner(owner)] for owner in ("ada", "bob")]
    header = json.loads(ada[0])

    def with_header(**fields: Any) -> list[str]:
        return [f"{json.dumps(header | fields)}\n", *ada[1:]]

    def with_budget(**fields: Any) -> list[str]:
        return with_header(budgets=[header["budgets"][0] | fields])

    damaged = [
        *(with_header(owner=value) for value in (None, 7, "bob", "\0", "x" * 2000)),
        *(with_header(budgets=value) for value in (None, 7, {}, [7], [{}])),
        *(with_budget(owner=value) for value in (None, "bob")),
        *(with_budget(tokens=value) for value in (-1, True, "1", 1e400, 10**30)),
        *(with_budget(cost=value) for value in ("NaN", "-1", "1e999", [])),
        with_budget(per="year"),
        with_budget(timezone="Mars/X"),
        with_header(more=1),
        *([line, *ada[1:]] for line in ("\ud800", "[", "[" * 100_000, "7")),
        [ada[0], *bob[1:-1], ada[-1]],
        [*ada[:-1], bob[-1]],
        [*ada, "{}"],
    ]
    for lines in damaged:
        async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
            with pytest.raises((ImportRefused, InvalidArgument)):
                await engine.import_owner(lines)
            assert (await engine.list_chats(owner="bob")).items == await engine.budgets(owner="bob") == []
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        for wrong in ([7], b"x", None):
            with pytest.raises(InvalidArgument, match="lines"):
                await engine.import_owner(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="owner: must be a string"):
            engine.export_owner(None)  # type: ignore[arg-type]


@BOTH
async def test_owner_is_erased(either_url: str) -> None:
    """Working chats are stopped; a second call continues with the rest, and finds nothing."""
    async with Engine(either_url, model=GatedModel("Done.")) as engine:
        chats = [await engine.create_chat(owner="ada") for _ in range(3)]
        other = await engine.create_chat(owner="bob")
        await engine.send_message(chats[0].id, "hello")
        await engine.wait(chats[0].id, until=["streaming"])
        await engine.archive(chats[1].id)
        await engine.set_budget(owner="ada", tokens=10**6)
        await engine.delete_chat(chats[2].id)  # as far as an earlier call came
        erasure = await engine.erase_owner("ada")
        assert (sorted(erasure.deleted), erasure.left) == (sorted(chat.id for chat in chats[:2]), {})
        for chat in chats:
            with pytest.raises(ChatNotFound):
                await engine.get_chat(chat.id)
        assert await engine.budgets() == []
        assert (await engine.get_chat(other.id)).owner == "bob"
        assert (await engine.erase_owner("ada")).deleted == []
