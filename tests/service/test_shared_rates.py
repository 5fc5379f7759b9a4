"""The request limit counts for all replicas of a service together, and costs few writes."""

from pathlib import Path
from typing import Any

import pytest

from turnwise import Engine, Settings
from turnwise.http_problems import RateLimited
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.sql import store as sql_store
from turnwise.service.auth import Principal
from turnwise.service.service import SharedRates
from turnwise.testing.clock import ManualClock

ADA, BOB = Principal("ada", "owner"), Principal("bob", "owner")


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
async def test_replicas_share_a_rate(place: str, request: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Each principal has a bucket; it fills by the database's clock, and is deleted once it is full."""
    monkeypatch.setattr(sql_store, "_DRAWS_UNTIL_CLEANUP", 5)
    server = request.getfixturevalue("postgres") if place == "postgres" else None
    url = server.new_url("rates") if server else f"sqlite:///{tmp_path / 'chats.db'}"
    clock, settings = ManualClock(), Settings(run_worker=False)
    stores = [store_from_url(url, durability="normal", now=clock.now) for _ in range(2)]
    async with (
        Engine(stores[0], model="demo", settings=settings) as one,
        Engine(stores[1], model="demo", settings=settings) as other,
    ):
        replicas = [SharedRates(engine, per_second=2, burst=60) for engine in (one, other)]
        for number in range(60):
            await replicas[number % 2].spend(ADA)
        for replica in replicas:
            with pytest.raises(RateLimited) as refused:
                await replica.spend(ADA)
            assert refused.value.retry_after == 0.5
        await replicas[1].spend(BOB)
        await clock.advance(0.5)
        await replicas[1].spend(ADA)
        await clock.advance(31)
        for _ in range(16):
            await replicas[0].spend(BOB)
        names = await stores[0]._read(lambda db: db.fetch_sql("SELECT name FROM rates"))
        assert [name for (name,) in names] == [BOB.actor]
