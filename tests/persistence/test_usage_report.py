"""Usage and cost of model calls by owner, agent, model and day, on both stores and on the command line."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import anyio
import pytest

from support.terminal import Terminal
from turnwise import Agent, Engine, Usage
from turnwise.engine.admin import usage_report
from turnwise.engine.config.results import UsageSum
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.errors import InvalidArgument
from turnwise.testing import ManualClock


def cheap(_: object) -> Reply:
    return Reply("Done.", usage=Usage(input_tokens=100, output_tokens=10, cost=Decimal("0.1")))


def unpriced(_: object) -> Reply:
    return Reply("Done.", usage=Usage(input_tokens=7, output_tokens=1))


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_usage_is_summed_up(either_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of unknown price are counted as such, not as free, across pages."""
    monkeypatch.setattr(usage_report, "_PAGE", 2)
    clock = ManualClock(datetime(2026, 1, 31, 23, 30, tzinfo=UTC))
    agents = [Agent("sales", ScriptedModel(cheap)), Agent("support", ScriptedModel(unpriced))]
    async with Engine(either_url, agents=agents, clock=clock) as engine:
        for owner, agent in (("ada", "sales"), ("ada", "support"), ("bob", "sales")):
            chat = await engine.create_chat(owner=owner, agent=agent)
            await engine.ask(chat.id, "hello")
        clock.step(3600)
        await engine.ask(chat.id, "again")
        (all_calls,) = await engine.usage_report()
        assert (all_calls.calls, all_calls.unpriced) == (4, 1)
        assert (all_calls.usage.cost, all_calls.usage.cost_partial) == (Decimal("0.3"), True)
        assert all_calls.usage.input_tokens == 307

        def rows(found: list[UsageSum], *names: str) -> list[tuple[object, ...]]:
            return [(*(getattr(one, name) for name in names), one.calls, one.usage.cost, one.unpriced) for one in found]

        by_day = await engine.usage_report(by=("owner", "day"))
        assert rows(by_day, "owner", "day") == [
            ("ada", "2026-01-31", 2, Decimal("0.1"), 1),
            ("bob", "2026-01-31", 1, Decimal("0.1"), 0),
            ("bob", "2026-02-01", 1, Decimal("0.1"), 0),
        ]
        by_agent = await engine.usage_report(by=("agent", "model"), owner="ada")
        assert rows(by_agent, "agent", "model") == [
            ("sales", "scripted:scripted", 1, Decimal("0.1"), 0),
            ("support", "scripted:scripted", 1, None, 1),
        ]
        midnight = datetime(2026, 2, 1, tzinfo=UTC)
        assert [one.calls for one in await engine.usage_report(since=midnight)] == [1]
        assert [one.calls for one in await engine.usage_report(until=midnight)] == [3]
        assert await engine.usage_report(since=midnight + timedelta(days=1)) == []
        in_berlin = await engine.usage_report(by=["day"], timezone="Europe/Berlin")
        assert rows(in_berlin, "day") == [("2026-02-01", 4, Decimal("0.3"), 1)]
        with pytest.raises(InvalidArgument, match="time zone"):
            await engine.usage_report(since=datetime(2026, 2, 1))  # noqa: DTZ001 - the point


async def test_terminal_reports_usage(tmp_path: object) -> None:
    terminal = Terminal(tmp_path)  # type: ignore[arg-type]
    url = f"sqlite:///{tmp_path}/turnwise.db"
    agents = [Agent("sales", ScriptedModel(cheap)), Agent("support", ScriptedModel(unpriced))]
    async with Engine(url, agents=agents) as engine:
        for agent in ("sales", "support"):
            await engine.ask((await engine.create_chat(owner="ada", agent=agent)).id, "hello")
    run = await anyio.to_thread.run_sync(lambda: terminal.run("usage", "--by", "owner"))
    assert "ada 2 107 11 $0.1 + 1 unpriced" in run.words
    run = await anyio.to_thread.run_sync(
        lambda: terminal.run("usage", "--by", "agent", "--since", "2000-01-01", "--json")
    )
    assert [(one["agent"], one["calls"]) for one in json.loads(run.out)] == [("sales", 1), ("support", 1)]
